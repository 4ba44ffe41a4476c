"""Access to the API: tokens and scopes, Host and Origin, limits on bodies and on frame rates, the log of refusals."""
