"""Routes that manage the daemon: status, load, unload, reload, stop, metrics, cache, pulls and the egress ledger."""
