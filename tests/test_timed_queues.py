"""A wait of limited time ends: CPython's SimpleQueue may wait for ever if its thread is late.

`SimpleQueue.get(timeout=...)` of CPython 3.11 waits without a limit if the time is over before the first wait begins.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "edgeagent"


def test_no_module_with_a_simple_queue_waits_for_a_queue_with_a_limit() -> None:
    waits = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "SimpleQueue" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and any(each.arg in ("timeout", "block") for each in node.keywords)
    ]
    assert not waits
