"""Write the documents into a folder: `python -m edgeagent.api.documents docs`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edgeagent.api.documents.asyncapi import asyncapi_document
from edgeagent.api.documents.openapi import openapi_document


def documents() -> dict[str, str]:
    """Return the text of each document, by its file name."""
    made = {"openapi.json": openapi_document(), "asyncapi.json": asyncapi_document()}
    return {name: json.dumps(document, indent=1, ensure_ascii=False) + "\n" for name, document in made.items()}


if __name__ == "__main__":
    for name, text in documents().items():
        Path(sys.argv[1], name).write_text(text, encoding="utf-8")
