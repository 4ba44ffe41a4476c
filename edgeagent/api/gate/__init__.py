"""Who gets in, and how much: tokens and scopes, Host and Origin, the log of refusals."""
