"""What clients send for ten ordinary types; README.md describes how it was made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Sent:
    """The part of a request that specifies the answer's form, as one client sends it for one type."""

    client: str
    type: str
    fragment: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.client}-{self.type}"

    @property
    def schema(self) -> dict[str, Any]:
        """The schema that the answer, or the call's arguments, must follow."""
        found: dict[str, Any]
        if self.fragment.get("tools"):
            found = self.fragment["tools"][0]["function"]["parameters"]
        elif "format" in self.fragment:
            found = self.fragment["format"]
        else:
            found = self.fragment["response_format"]["json_schema"]["schema"]
        return found

    @property
    def strict(self) -> bool:
        """Whether the client asks for strictness. By default a tool is not strict, and a response format is."""
        if self.fragment.get("tools"):
            return bool(self.fragment["tools"][0]["function"].get("strict"))
        form = self.fragment.get("response_format", {}).get("json_schema", {})
        return form.get("strict") is not False


def all_sent() -> list[Sent]:
    """Return every fixture; if two clients send the same, only the first."""
    found: dict[str, Sent] = {}
    for path in sorted(Path(__file__).parent.glob("*.json")):
        for name, fragment in json.loads(path.read_text()).items():
            found.setdefault(json.dumps(fragment, sort_keys=True), Sent(path.stem, name, fragment))
    return list(found.values())
