"""edgeagent: a low-latency on-device inference daemon. This module knows only its own version."""

__version__ = "0.1.0"
