"""The checks of `edgeagent doctor`. It gathers facts about the machine, then pure checks turn the facts into findings."""
