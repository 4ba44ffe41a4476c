"""The client without `await`: what Ctrl-C leaves, and what a closed client leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

import pytest

from edgeagent.client.sync import _Loop
from edgeagent.errors import BackendUnavailable
from tests.patience import patient


@pytest.mark.skipif(os.name != "posix", reason="needs pthread_kill")
def test_ctrl_c_ends_the_call_that_it_interrupts() -> None:
    loop, is_running, is_ended = _Loop(), threading.Event(), threading.Event()
    main = threading.get_ident()

    async def call() -> None:
        is_running.set()
        try:
            await asyncio.sleep(60)
        finally:
            is_ended.set()

    def interrupt() -> None:
        is_running.wait()
        while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:  # it waits for the call
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run(call())
        assert is_ended.wait(patient(5))
    finally:
        interrupting.join()
        loop.stop(lambda: asyncio.sleep(0))


def test_no_thread_waits_for_a_loop_that_was_stopped() -> None:
    """Whether a call comes before the end, meanwhile or after it."""
    for waiting_s in (0.0, 60.0):
        for _ in range(50):
            loop = _Loop()
            ends: list[str] = []

            def call(loop: _Loop = loop, ends: list[str] = ends, waiting_s: float = waiting_s) -> None:
                try:
                    while True:
                        loop.run(asyncio.sleep(waiting_s))
                except BackendUnavailable as error:
                    ends.append(str(error))

            threads = [threading.Thread(target=call) for _ in range(4)]
            for thread in threads:
                thread.start()
            loop.stop(lambda: asyncio.sleep(0))
            for thread in threads:
                thread.join(patient(20))
            assert ends == ["the client was closed"] * 4
