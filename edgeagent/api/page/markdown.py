"""Markdown as a tree of elements that a page can build without HTML.

The text is a model's, so it may be hostile. A node of the tree is a string, which is shown as it is, or a list: the
name of an element, its attributes, and its children. Only the elements and attributes below can be in a tree: no HTML,
no image, and no link other than to http, https or mailto.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field

from edgeagent.api.wire.body import Body, read_valid
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Shape
from edgeagent.credentials.keys import Scope

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

routes = Routes()

# The parser's time grows with the square of some texts, such as brackets, with the cells of a table, and with the
# square of the number of block quotes. With these limits the worst known text takes 0.2 s of a thread.
MAX_CHARS = 8192
MAX_CELLS = 2000
MAX_QUOTES = 1000
MAX_DEPTH = 24
# The beginning of a line that can have the marks of block quotes and list items.
_MARKS = re.compile(r"[\s>*+\-\d.)]*")
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_THREAD = ThreadPoolExecutor(1, "markdown")

Node = str | list[Any]


class MarkdownBody(Body):
    """`text`: one block of Markdown, or a few."""

    text: Annotated[str, Field(max_length=MAX_CHARS)]


class Markdown(Shape):
    """`nodes`: strings, and lists of an element's name, its attributes, and its children.

    null: the text would take too long, and must be shown as it is.
    """

    nodes: list[str | list[Any]] | None


@routes.add("POST /edgeagent/page/markdown", Scope.INFER, "page", body=MarkdownBody, answer=Markdown)
@routes.add("POST /edgeagent/kiosk/markdown", Scope.KIOSK, "page", body=MarkdownBody, answer=Markdown)
async def render(request: Request) -> JSONResponse:
    """Return Markdown as a tree of elements. The text has at most 8192 characters."""
    text = (await read_valid(request, MarkdownBody)).text
    nodes = await asyncio.get_running_loop().run_in_executor(_THREAD, tree_of, text)
    return JSONResponse(Markdown(nodes=nodes))


def tree_of(text: str) -> list[Node] | None:
    """Return the nodes of a text of at most MAX_CHARS characters; None if it has too many cells of tables or quotes."""
    lines = text.splitlines()
    num_cells = len(lines) * max((line.count("|") for line in lines), default=0)
    depth = max((found[0].count(">") for line in lines if (found := _MARKS.match(line))), default=0)
    num_quotes = len(lines) * min(depth, MAX_DEPTH)
    if num_cells > MAX_CELLS or num_quotes > MAX_QUOTES:
        return None
    return _nodes(_parser().parse(text))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # only now, since it takes 0.8 MB

    # Nesting is limited because each level is a level of JSON.
    return MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_DEPTH}).enable(["table", "strikethrough"])


def _nodes(tokens: Iterable[Token]) -> list[Node]:
    root: list[Node] = []
    # The lists to which children are added. Deeper than MAX_DEPTH, an element's children go into its parent.
    path: list[list[Any]] = [root]
    for token in _flat(tokens):
        if token.nesting == 1:
            element = _element(token)
            if element is None or len(path) > MAX_DEPTH:
                path.append(path[-1])
            else:
                path[-1].append(element)
                path.append(element)
        elif token.nesting == -1:
            path.pop()
        elif (node := _leaf(token)) is not None:
            path[-1].append(node)
    return root


def _flat(tokens: Iterable[Token]) -> Iterable[Token]:
    for token in tokens:
        if token.type == "inline":
            yield from token.children or ()
        else:
            yield token


_BLOCKS = ("p", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li")
_ELEMENTS = frozenset((*_BLOCKS, "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td"))


def _element(token: Token) -> list[Any] | None:
    """Return the empty element that a token opens; None if only its children are shown."""
    if token.type == "link_open":
        target = str(token.attrs.get("href", ""))
        return ["a", {"href": target}] if _LINK.match(target) else None
    if token.hidden or token.tag not in _ELEMENTS:
        return None
    attributes: dict[str, Any] = {}
    if token.tag == "ol" and isinstance(start := token.attrs.get("start"), int):
        attributes["start"] = start
    if token.tag in ("th", "td") and (align := re.search(r"center|right", str(token.attrs.get("style", "")))):
        attributes["align"] = align[0]
    return [token.tag, attributes]


def _leaf(token: Token) -> Node | None:
    match token.type:
        case "code_inline":
            return ["code", {}, token.content]
        case "fence" | "code_block":
            language = token.info.split()[0][:32] if token.info.split() else ""
            return ["pre", {"language": language} if language else {}, token.content]
        case "hr":
            return ["hr", {}]
        case "hardbreak":
            return ["br", {}]
        case "softbreak":
            return "\n"
        case "image":
            return f"[image: {token.content}]"
    return token.content or None
