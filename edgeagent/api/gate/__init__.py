"""Access to the API: tokens and scopes, Host and Origin, limits on bodies and their rate, the log of refusals."""
