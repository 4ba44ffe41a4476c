"""What an owner asks and changes: status, metrics, caches, pulls, remotes, a model on trial."""
