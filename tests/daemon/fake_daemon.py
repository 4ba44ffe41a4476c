"""A whole daemon process with a fake backend: `python -m tests.daemon.fake_daemon STATE_DIR PORT [SCRIPT]`."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterable
from pathlib import Path

from edgeagent.config import Config, ServerConfig
from edgeagent.daemon import serve, state
from edgeagent.errors import ModelDamaged, ModelNotFound, ModelOutOfMemory
from edgeagent.types import GenerateRequest, ModelStatus, Started, TextDelta, WorkerState
from tests.backends.fake import Act, FakeBackend, Gate, echo


def endless(_request: GenerateRequest) -> Iterable[Act]:
    yield Started(1, 0)
    yield TextDelta("one")
    yield Gate()


class Echo(FakeBackend):
    """A backend that checks the daemon's setup when it stops."""

    def __init__(self) -> None:
        super().__init__(echo)

    async def stop(self) -> None:
        assert gc.get_freeze_count(), "a full collection looks at every object of every module"
        await super().stop()


class Unfindable(FakeBackend):
    """A backend whose model does not exist."""

    async def start(self) -> None:
        raise ModelNotFound("there is no model at /nowhere.gguf; pull one with `edgeagent pull`")


class Unloadable(FakeBackend):
    """A backend whose model exists, but is damaged."""

    def statuses(self) -> list[ModelStatus]:
        cause = "tensor 3 lies outside the file"
        return [ModelStatus("fake", WorkerState.FAILED, cause=cause, error_code=ModelDamaged.code)]


class SlowToLoad(FakeBackend):
    """A backend whose model loads during six calls of `models`, is ready for one, and has failed afterwards."""

    def __init__(self) -> None:
        super().__init__()
        states = [(WorkerState.STARTING, share / 4) for share in (0, *range(5))]
        states += [(WorkerState.READY, 1.0), (WorkerState.FAILED, 0.0)]
        self._looks = itertools.chain(states, itertools.repeat(states[-1]))

    def statuses(self) -> list[ModelStatus]:
        state, progress = next(self._looks)
        return [ModelStatus("fake", state, progress, cause="signal 9" if state is WorkerState.FAILED else None)]


class Unfit(FakeBackend):
    """A backend whose model starts to load, and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self._states = itertools.chain((WorkerState.STARTING,) * 3, itertools.repeat(WorkerState.FAILED))

    def statuses(self) -> list[ModelStatus]:
        state = next(self._states)
        cause = "the context takes more memory than is free"
        code = ModelOutOfMemory.code if state is WorkerState.FAILED else None
        return [ModelStatus("fake", state, cause=cause, error_code=code)]


BACKENDS = {
    "echo": Echo,
    "endless": lambda: FakeBackend(endless),
    "unfindable": Unfindable,
    "unloadable": Unloadable,
    "slow": SlowToLoad,
    "unfit": Unfit,
}

if __name__ == "__main__":
    folder, port, name = sys.argv[1:]
    state.CHECK_S = 0.1
    server = ServerConfig(host="127.0.0.1", port=int(port), drain_s=3600.0)
    sys.exit(serve(Config(state_dir=Path(folder), server=server), build=lambda _: BACKENDS[name]()))
