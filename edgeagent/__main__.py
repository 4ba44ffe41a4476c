"""Entry point of `python -m edgeagent`, which is the same as the edgeagent command."""

from edgeagent.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
