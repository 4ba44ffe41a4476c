"""What `edgeagent doctor` looks at: facts of the machine are gathered, then pure checks turn them into findings."""
