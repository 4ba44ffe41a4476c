"""Writes the table of options into README.md, from their declaration: `python packaging/readme.py`."""

from __future__ import annotations

import re
from pathlib import Path

from edgeagent.config import declared_options

README = Path(__file__).parents[1] / "README.md"


def options_table() -> str:
    """Return the table of all options as Markdown."""
    lines = ["| option | flag | default | what it does |", "|---|---|---|---|"]
    for option in declared_options():
        default = "" if option.default in (None, ()) else f"`{_plain(option.default)}`"
        flag = "`MODEL`" if option.name == "model" else f"`{option.flag}`"
        lines.append(f"| `{option.name}` | {flag} | {default} | {option.help} |")
    return "\n".join(lines)


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return "the platform's state folder"
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_options(text: str) -> str:
    """Return README's text with the table of options renewed."""
    return re.sub(
        r"(<!-- options -->\n).*?(<!-- /options -->)",
        lambda match: f"{match[1]}{options_table()}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    README.write_text(with_options(README.read_text(encoding="utf-8")), encoding="utf-8")
