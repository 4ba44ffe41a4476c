"""The owner's routes: status, load, unload, reload, stop, metrics, cache, pulls, remotes and the egress ledger."""
