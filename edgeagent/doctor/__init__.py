"""The checks of `edgeagent doctor`.

gather.py gathers facts about the machine. Pure functions turn these facts into findings.
"""
