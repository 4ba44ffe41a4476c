"""Images and sounds that are sent from the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.cli.attachments import checked_file, dropped_file, looks_like_file, take_files
from edgeagent.client import user_message
from edgeagent.errors import InvalidRequest
from tests.media import RED, SILENCE, b64, data_url


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "my photo.png"
    path.write_bytes(RED)
    return path


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.wav"
    path.write_bytes(SILENCE)
    return path


def test_files_at_the_end_of_the_words(photo: Path, sound: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("no image", encoding="utf-16")
    assert take_files(["m", "what is this?", str(photo), str(sound)]) == (["m", "what is this?"], [photo, sound])
    assert take_files(["what is this?", str(photo)]) == (["what is this?"], [photo])
    for words in ([str(photo)], ["m", "what", "is", "it"], ["m", str(tmp_path / "notes.png")], ["m", "x\0y"], []):
        assert take_files(words) == (words, [])


def test_a_word_that_is_named_as_a_file() -> None:
    assert looks_like_file(["m", "what is this?", "photo.JPG"])
    for words in ([], ["photo.png"], ["m", "what is it?"], ["m", "explain photo.png"], ["m", "notes.txt"]):
        assert not looks_like_file(words)


@pytest.mark.parametrize("form", ["{}", "'{}'", '"{}" ', "file://{}"])
def test_a_dropped_file(photo: Path, form: str) -> None:
    assert dropped_file(form.format(photo)) == photo


def test_a_dropped_file_with_escaped_blanks(photo: Path, tmp_path: Path) -> None:
    assert dropped_file(str(photo).replace(" ", "\\ ")) == photo
    for line in ("What's this?", "/help", str(tmp_path), "", "photo.png and more"):
        assert dropped_file(line) is None


def test_a_file_that_is_named_is_checked(photo: Path, tmp_path: Path) -> None:
    assert checked_file(str(photo)) == photo
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(InvalidRequest, match="neither an image"):
        checked_file(tmp_path / "notes.txt")
    with pytest.raises(InvalidRequest, match="is an address"):
        checked_file(Path("https://images.example/a.png"))
    with pytest.raises(InvalidRequest, match="cannot be read: No such file"):
        checked_file("nowhere.png")


def test_a_message_with_files(photo: Path) -> None:
    assert user_message("What is this?", photo, SILENCE) == {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_image", "image_url": data_url(RED), "detail": "auto"},
            {"type": "input_audio", "input_audio": {"data": b64(SILENCE), "format": "wav"}},
            {"type": "input_text", "text": "What is this?"},
        ],
    }
    assert user_message("", RED)["content"] == [{"type": "input_image", "image_url": data_url(RED), "detail": "auto"}]
