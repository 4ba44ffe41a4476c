"""Routes that manage the daemon: status, load, unload, reload, stop, metrics, cache and the egress ledger."""
