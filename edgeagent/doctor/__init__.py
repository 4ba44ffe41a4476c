"""The checks of `edgeagent doctor`. Pure functions turn previously gathered facts about the machine into findings."""
