"""F21: a worker under an intruder's control writes anything: it is cut off and replaced, and the daemon survives."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from edgeagent.worker.parent.supervision import channel, supervisor
from tests.robust.faults import TERMINAL, faulty

MAX_GROWTH_BYTES = 8 << 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("garbage", "broke the protocol"),
        ("oversized", "1073741824 bytes is over the limit"),
        ("wrong-id", "which is not live"),
        ("after-end", "which is not live"),
        ("two-ends", "after its end"),
        ("wrong-pong", "an unexpected pong 4000000"),
        ("flood", "a flood of"),
        ("many-parts", "parts"),
        ("close-output", "closed its output"),
    ],
)
async def test_it_is_cut_off_and_what_it_owed_is_asked_of_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr(channel, "OUTPUT_GRACE_S", 0.05)
    # On a machine busy with other tests, fewer frames arrive per second than the real limit for a flood.
    monkeypatch.setattr(supervisor, "FloodLimit", lambda: channel.FloodLimit(max_frames=1000, period_s=60.0))
    async with faulty(tmp_path) as victim, victim.socket() as socket, victim.socket() as other:
        hostile = victim.worker
        before_bytes = psutil.Process().memory_info().rss
        bystander = await (await victim.say(socket, "linger 2 | answer 4")).until(2)
        attack = await victim.say(other, f"{text} | answer 3")
        assert (await bystander.end()).text == "0 1 2 3 "
        # The intruder controls its own answer; still that answer ends, exactly once.
        while attack.events[-1:] == [] or attack.events[-1]["type"] not in TERMINAL:
            await attack.next()
        assert not hostile.is_running()
        assert psutil.Process().memory_info().rss - before_bytes <= MAX_GROWTH_BYTES
    assert words in caplog.text
