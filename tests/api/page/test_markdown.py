"""Markdown as a tree: what is shown, what a hostile text cannot become, and how long the worst text takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edgeagent.api.page.markdown import MAX_CELLS, MAX_CHARS, MAX_DEPTH, Node, tree_of
from tests.backends.fake import FakeBackend
from tests.daemon.running import running


def nodes_of(text: str) -> list[Node]:
    found = tree_of(text)
    assert found is not None
    return found


def elements(nodes: list[Any]) -> Iterator[list[Any]]:
    for node in nodes:
        if isinstance(node, list):
            yield node
            yield from elements(node[2:])


def words(nodes: list[Any]) -> str:
    return "".join(node if isinstance(node, str) else words(node[2:]) for node in nodes)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a *b* **c** ~~d~~", [["p", {}, "a ", ["em", {}, "b"], " ", ["strong", {}, "c"], " ", ["s", {}, "d"]]]),
        ("## a `b`", [["h2", {}, "a ", ["code", {}, "b"]]]),
        ("- a\n- b", [["ul", {}, ["li", {}, "a"], ["li", {}, "b"]]]),
        ("3. a", [["ol", {"start": 3}, ["li", {}, "a"]]]),
        ("> a", [["blockquote", {}, ["p", {}, "a"]]]),
        ("```py x\n<b>\n```", [["pre", {"language": "py"}, "<b>\n"]]),
        ("    a\n", [["pre", {}, "a\n"]]),
        ("a  \nb\nc", [["p", {}, "a", ["br", {}], "b", "\n", "c"]]),
        ("---", [["hr", {}]]),
        ("[a](http://b.example/c)", [["p", {}, ["a", {"href": "http://b.example/c"}, "a"]]]),
        ("<mailto:a@b.example>", [["p", {}, ["a", {"href": "mailto:a@b.example"}, "mailto:a@b.example"]]]),
        ("![a *b*](http://b.example/c)", [["p", {}, "[image: a *b*]"]]),
    ],
)
def test_what_is_shown(text: str, nodes: list[Any]) -> None:
    assert nodes_of(text) == nodes


def test_a_table() -> None:
    table: Any = nodes_of("|a|b|\n|-|-:|\n|1|2|")[0]
    name, _, head, body = table
    assert name == "table"
    assert head == ["thead", {}, ["tr", {}, ["th", {}, "a"], ["th", {"align": "right"}, "b"]]]
    assert body == ["tbody", {}, ["tr", {}, ["td", {}, "1"], ["td", {"align": "right"}, "2"]]]


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a <img src=x onerror=alert(1)> b",
        "<!-- x --><style>*{display:none}</style>",
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert(1))",
        "[a](&#106;avascript:alert(1))",
        "[a](data:text/html,<script>1</script>)",
        "[a](vbscript:x) [b](file:///etc/passwd) [c](/edgeagent/stop) [d](//evil.example) [e](ws://evil.example)",
        "<javascript:alert(1)>",
        "![a](javascript:alert(1))",
        "[a]\n\n[a]: javascript:alert(1)",
    ],
)
def test_a_hostile_text_becomes_text(text: str) -> None:
    found = nodes_of(text)
    names = {node[0] for node in elements(found)}
    assert names <= {"p", "h1", "h2"}, found
    assert all(node[1] == {} for node in elements(found))


@pytest.mark.parametrize(
    "text",
    [">" * MAX_CHARS, "- " * (MAX_CHARS // 2), "*a **a " * 1000, "[" * MAX_CHARS, "*_" * (MAX_CHARS // 2)],
    ids=["quotes", "lists", "emphasis", "brackets", "marks"],
)
def test_depth_is_bounded(text: str) -> None:
    def depth(nodes: list[Any]) -> int:
        return max((1 + depth(node[2:]) for node in nodes if isinstance(node, list)), default=0)

    assert depth(nodes_of(text)) <= MAX_DEPTH


def test_nothing_of_the_text_is_lost_below_the_deepest_element() -> None:
    text = "".join(f"*{'a' if n % 2 else '*b'} " for n in range(200)) + "end"
    assert words(nodes_of(text)).endswith("end")


def test_too_many_cells_are_not_parsed() -> None:
    row = "|".join("a" * 20)
    assert tree_of(f"{row}\n{'-|' * 19}-\n" + "|\n" * MAX_CELLS) is None
    assert tree_of(f"{row}\n{'-|' * 19}-\n" + f"{row}\n" * 40) is not None


@pytest.mark.parametrize("group", [">>>>\na\na\na\n", "> \na\n", "- > > > \na\n", "1. >>\na\n\n"])
def test_too_many_quotes_are_not_parsed(group: str) -> None:
    assert tree_of((group * MAX_CHARS)[:MAX_CHARS]) is None
    assert tree_of(group * 20) is not None


async def test_the_route() -> None:
    async with running(FakeBackend()) as daemon:
        url = f"{daemon.url}/edgeagent/page/markdown"
        assert (await daemon.http.post(url, json={"text": "*a*"})).json() == {"nodes": [["p", {}, ["em", {}, "a"]]]}
        assert (await daemon.http.post(url, json={"text": "|\n" * 4000})).json() == {"nodes": None}
        for body in ({"text": "a" * (MAX_CHARS + 1)}, {"text": 1}, {}):
            assert (await daemon.http.post(url, json=body)).status_code == 400
