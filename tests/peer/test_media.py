"""The comparison of questions about images and sounds, without its other server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peer import media


def test_without_llama_server_it_says_what_to_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["media", "--llama-server", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        media.main()
    assert "compile it with `python tests/peer/build.py`" in capsys.readouterr().err
