"""`edgeagent bench`: the command and its flags."""
