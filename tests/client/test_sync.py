"""The client without `await`: what Ctrl-C leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from edgeagent.client.sync import _Loop
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
        time.sleep(0.2)  # until the main thread waits for the call
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run(call())
        assert is_ended.wait(patient(5))
    finally:
        interrupting.join()
        loop.stop()
