"""`python -m edgeagent` whose answers wait for their store as long as a busy machine needs.

An answer of a user's daemon waits 50 ms for the disk and half a second for a look-up by similarity. Then the model
answers, and a test could not tell why.
"""

from edgeagent.answers.store import PATIENCE_S
from edgeagent.cli import main
from tests.patience import patient

if __name__ == "__main__":
    PATIENCE_S.set(patient(10.0))  # the event loop's tasks inherit it
    raise SystemExit(main())
