"""Where a daemon process stores responses, and which of them survive a kill -9."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from edgeagent.conversation.store import FILE
from tests.patience import patient
from tests.robust.fake_serve import serving


def ask(url: str, **fields: Any) -> Any:
    request = urllib.request.Request(
        f"{url}/v1/responses", json.dumps(fields).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=patient(20)) as reply:
        return json.load(reply)


def test_a_chain_goes_on_after_a_kill(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    with serving(state_dir) as daemon:
        first = ask(daemon.runtime.url, input="one")
        daemon.process.kill()
    with serving(state_dir) as daemon:
        second = ask(daemon.runtime.url, input="two", previous_response_id=first["id"])
        url = f"{daemon.runtime.url}/v1/responses/{second['id']}/input_items"
        with urllib.request.urlopen(url, timeout=patient(20)) as reply:
            assert len(json.load(reply)["data"]) == 3


def test_a_damaged_file_does_not_keep_the_daemon_from_serving(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    (state_dir / FILE).write_bytes(b"rubbish" * 1000)
    with serving(state_dir) as daemon:
        first = ask(daemon.runtime.url, input="one")
        assert ask(daemon.runtime.url, input="two", previous_response_id=first["id"])["status"] == "completed"
        assert (state_dir / f"{FILE}.damaged").exists()


def test_kept_in_memory_alone(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    with serving(state_dir, "--forget") as daemon:
        assert daemon.runtime.forgets, "what tells a chat to keep no lines"
        first = ask(daemon.runtime.url, input="one")
        assert ask(daemon.runtime.url, input="two", previous_response_id=first["id"])["status"] == "completed"
        assert not list(state_dir.glob(f"{FILE}*"))
