"""The system prompt of a kiosk: the owner's instructions, and what the file of facts says at the moment."""

from __future__ import annotations

from pathlib import Path

from edgeagent.config import KioskConfig
from edgeagent.errors import ConfigError

MAX_FACTS_BYTES = 32 << 10


def system_prompt(kiosk: KioskConfig, facts: str) -> str:
    """Return the system prompt; "" if there is none."""
    return "\n\n".join(text for text in (kiosk.instructions, facts.strip()) if text)


def read_facts(path: Path | None) -> str:
    """Return what kiosk.facts_file says now; "" if there is no such option. Raise ConfigError if it cannot be used."""
    if path is None:
        return ""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError("it is no file")
        with path.open("rb") as file:
            content = file.read(MAX_FACTS_BYTES + 1)
        if len(content) <= MAX_FACTS_BYTES:
            return content.decode("utf-8-sig")  # editors of Windows write a byte order mark
        problem = f"it has more than {MAX_FACTS_BYTES} bytes"
    except OSError as error:
        problem = error.strerror or str(error)
    except UnicodeDecodeError:
        problem = "it is not a text in UTF-8"
    raise ConfigError(f"kiosk.facts_file: {path} cannot be used: {problem}")
