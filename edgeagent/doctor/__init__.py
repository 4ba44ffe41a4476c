"""The checks of `edgeagent doctor`. Pure functions turn facts about the machine, gathered before, into findings."""
