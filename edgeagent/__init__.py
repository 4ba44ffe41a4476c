"""edgeagent: a low-latency on-device inference daemon. This module holds only the version."""

__version__ = "0.1.0"
