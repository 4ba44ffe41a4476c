"""The types of JSON on the wire: an object of any form, and the base of those whose fields are known."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

Json = dict[str, Any]
"""A JSON object of any form."""


class Shape(TypedDict):
    """A JSON object that the daemon sends: a plain dict, so it costs nothing. The documents are made of these too.

    Every field is always there, but for those that are NotRequired. Clients must expect fields that are added later.
    """

    __pydantic_config__ = ConfigDict(extra="allow", use_attribute_docstrings=True)  # type: ignore[misc]
