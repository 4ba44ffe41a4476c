"""Text files that a user names, such as questions and prompts. Each error says which file, and what is wrong there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgeagent.errors import ConfigError


def text_of(file: Path) -> str:
    """Return the text of a file; raise ConfigError if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (see its byte {error.start})") from None


def json_object(text: str, what: str, wanted: str) -> dict[str, Any]:
    """Return the JSON object that a text is. `what` names the text in errors, `wanted` says what the object is for.

    Raise ConfigError if the text is something else.
    """
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{what} must be an object {wanted}")
    return fields
