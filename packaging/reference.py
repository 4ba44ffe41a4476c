"""Write the reference pages of docs/ from the code: `python packaging/reference.py docs/reference`.

Options, commands, HTTP routes, WebSocket frames, errors and metrics: one page each. A test compares the committed pages
with what this script writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import typer
from prometheus_client.metrics import MetricWrapperBase

import edgeagent.api.app  # noqa: F401 - its wires declare errors of their own
from edgeagent import metrics
from edgeagent.api.documents.asyncapi import asyncapi_document
from edgeagent.api.documents.openapi import openapi_document
from edgeagent.api.wire.errors import WireForm, error_codes, wire_form
from edgeagent.cli.app import build_app
from edgeagent.cli.commands import COMMANDS
from edgeagent.cli.help import plain_record
from edgeagent.cli.settings import options_table
from edgeagent.config_sources import declared_options
from edgeagent.daemon.transport import REFUSALS
from edgeagent.metrics import FastHistogram
from edgeagent.metrics.exposition import Snapshot, gauges

ROOT = Path(__file__).resolve().parent.parent
MADE_BY = "<!-- Made from the code by `make documents`. Do not edit. -->"
# A command with more than this number of the daemon's options has all of them.
MANY = 10
TAGS = {
    "openai": "OpenAI's API",
    "responses": "Responses",
    "anthropic": "Anthropic's API",
    "ollama": "Ollama's API",
    "llama-server": "llama-server's API",
    "daemon": "The daemon",
    "page": "The page for browsers",
}


_TOOL_EXAMPLE = """\
{"type": "response.create", "input": "Set a timer for 7 minutes.", "tools": [{"type": "function", "name": "set_timer",
  "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}}]}"""


def pages() -> dict[str, str]:
    """Return the name and the text of each reference page."""
    made = {
        "options.md": options_page(),
        "command-line.md": command_page(),
        "http.md": http_page(),
        "websocket.md": websocket_page(),
        "realtime.md": realtime_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
    }
    return {name: f"{MADE_BY}\n\n{text.rstrip()}\n" for name, text in made.items()}


def options_page() -> str:
    """Return the page of options."""
    return f"""# Options

Each option can be set in three places. The first that sets it wins:

1. a flag: `--ctx 4096`
2. an environment variable: `EDGEAGENT_ENGINE__CTX=4096`
3. `config.toml`: `ctx = 4096` under `[engine]`. `edgeagent config path` prints where the file is.

An unknown name is an error. `edgeagent config show` prints each value and its source.

{options_table()}
"""


def command_page() -> str:
    """Return the page of commands."""
    parts = [
        "# Command line",
        "`--help` works after every command. Exit statuses: 0 success, 1 failure, "
        "2 a wrong argument or setting, such as the name of a model that is not there, 130 interrupted. "
        "`edgeagent serve` also exits with 3 if the port is taken, and with 4 if another daemon uses the state folder.",
        table(["command", "what it does"], ([f"[`{n}`](#{n})", c.summary] for n, c in COMMANDS.items())),
    ]
    for name in COMMANDS:
        parts += [f"## {name}", *_command(name)]
    return "\n\n".join(parts)


class Described(NamedTuple):
    """A command that can be run: its path, usage line and help, and each argument or flag with its meaning.

    `has_all_options`: it also takes every declared option, and `rows` has none of them.
    """

    path: str
    usage: str
    help: str
    rows: list[tuple[str, str]]
    has_all_options: bool


def described(name: str) -> list[Described]:
    """Return the command `name`, or its subcommands if it has some."""
    command = typer.main.get_command(build_app(name)).commands[name]  # type: ignore[attr-defined]
    return list(_described(f"edgeagent {name}", command))


def _described(path: str, command: Any) -> Iterator[Described]:
    members: Mapping[str, Any] = getattr(command, "commands", {})
    for name, member in members.items():
        yield from _described(f"{path} {name}", member)
    if members:
        return
    context = command.make_context(path, [], resilient_parsing=True)
    flags = {flag for param in command.params for flag in param.opts}
    declared = {option.flag for option in declared_options()}
    # Declared options are on the page of options. They are not repeated, since their defaults depend on this machine.
    is_with_all = len(declared & flags) > MANY
    rows = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and param.name != "help" and not (is_with_all and param.opts[0] in declared):
            rows.append(plain_record(record, param.param_type_name))
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield Described(path, usage, command.help or "", rows, is_with_all)


def _command(name: str) -> Iterator[str]:
    for command in described(name):
        if command.path != f"edgeagent {name}":
            yield f"### {command.path.removeprefix('edgeagent ')}"
        yield f"```text\n{command.usage}\n```"
        yield _prose(command.help)
        rows = []
        for argument, text in command.rows:
            flag, _, choices = argument.partition(" ") if "|" in argument else (argument, "", "")
            rows.append([f"`{flag}` {choices.replace('|', ', ')}", text])
        if rows:
            yield table(["argument or flag", "meaning"], rows)
        if command.has_all_options:
            yield "This command also takes [every option](options.md) as a flag."


def _prose(text: str) -> str:
    """Return a command's help as Markdown; lines that were formatted by hand are kept."""
    paragraphs = []
    for part in text.strip().split("\n\n"):
        if part.startswith("\b"):
            paragraphs.append("```text\n" + part.removeprefix("\b\n") + "\n```")
        else:
            paragraphs.append(" ".join(part.split()))
    return "\n\n".join(paragraphs)


def http_page() -> str:
    """Return the page of HTTP routes."""
    document = openapi_document()
    parts = [
        "# HTTP",
        "All of these are on one port. [openapi.json](../openapi.json) describes them for tools, with the "
        "schema of each body and answer. `edgeagent serve --docs` serves it at `/openapi.json`, and a page to read at "
        "`/docs`.",
        "**Scope** says what a token must allow. [Access](../access.md) says who needs a token. [Errors](errors.md) "
        "lists the codes. Unknown fields are ignored. Routes that generate, embed or rank name them in the header "
        "`x-edgeagent-warning`. The routes under `/edgeagent/` refuse them. Where the query and the body have "
        "the same fields, send each field in either.",
    ]
    grouped: dict[str, list[list[str]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "head":
                continue
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            scope = operation.get("x-scope")
            parameters = operation.get("parameters", ())
            query = ", ".join(f"`{each['name']}`" for each in parameters if each.get("in") == "query")
            row = [f"`{method.upper()} {path}`", scope or "none", query, _schema_link(body), operation["summary"]]
            grouped.setdefault(operation["tags"][0], []).append(row)
    for tag, rows in grouped.items():
        parts += [f"## {TAGS.get(tag, tag)}", table(["route", "scope", "query", "body", "what it does"], rows)]
    parts += ["## Bodies"]
    schemas = document["components"]["schemas"]
    for name in _bodies(document):
        parts += [f"### {name}", *_schema(schemas[name])]
    return "\n\n".join(parts)


def _bodies(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the schemas that clients send, and of those nested in them, each once."""
    sent = [
        operation["requestBody"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    yield from _reachable(sent, document["components"]["schemas"])


def _reachable(nodes: Iterable[Any], schemas: Mapping[str, Any]) -> list[str]:
    """Return the names of the schemas that the nodes refer to, and of those nested in them, each once and sorted."""
    seen: set[str] = set()
    waiting = list(nodes)
    while waiting:
        for name in _refs(waiting.pop(0)):
            if name not in seen:
                seen.add(name)
                waiting.append(schemas[name])
    return sorted(seen)


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for value in node.values():
            yield from _refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _refs(value)


def websocket_page() -> str:
    """Return the page of WebSocket frames and events."""
    document = asyncapi_document()
    head = [
        "# WebSocket",
        "`ws://127.0.0.1:8127/v1/responses` speaks OpenAI's Responses API in WebSocket mode. "
        "[asyncapi.json](../asyncapi.json) describes it for tools. Another WebSocket speaks the [Realtime "
        "API](realtime.md).",
        document["info"]["description"],
        "Tools have the flat form of the Responses API, without an object `function`:",
        f"```json\n{_TOOL_EXAMPLE}\n```",
    ]
    return _socket_page("responses", head, document)


def realtime_page() -> str:
    """Return the page of the Realtime API's events."""
    document = asyncapi_document()
    head = [
        "# Realtime API",
        "`ws://127.0.0.1:8127/v1/realtime`. [asyncapi.json](../asyncapi.json) describes it for tools.",
        document["channels"]["realtime"]["description"],
    ]
    return _socket_page("realtime", head, document)


def _socket_page(channel: str, head: list[str], document: Mapping[str, Any]) -> str:
    """Return the page of a channel: what its frames and events are, and the types in them."""
    messages, schemas = document["components"]["messages"], document["components"]["schemas"]
    listed = document["channels"][channel]["messages"]
    parts, payloads = head, []
    for title, action in (("Frames from the client", "receive"), ("Events from the daemon", "send")):
        names = [ref["$ref"].rpartition("/")[2] for ref in document["operations"][f"{channel}.{action}"]["messages"]]
        found = {name: messages[listed[name]["$ref"].rpartition("/")[2]] for name in names}
        rows = ([f"[`{name}`](#{_anchor(name)})", message["summary"]] for name, message in found.items())
        parts += [f"## {title}", table(["type", "meaning"], rows)]
        for name, message in found.items():
            payloads.append(schemas[message["payload"]["$ref"].rpartition("/")[2]])
            parts += [f"### {name}", *_schema(payloads[-1])]
    parts.append("## Types")
    http = openapi_document()
    on_http_page = {
        name for name in _bodies(http) if _rows(http["components"]["schemas"][name]) == _rows(schemas.get(name, {}))
    }
    for name in _reachable(payloads, schemas):
        if name not in on_http_page:
            parts += [f"### {name}", *_schema(schemas[name])]
    page = "\n\n".join(parts)
    for name in on_http_page:
        page = page.replace(f"](#{name.lower()})", f"](http.md#{name.lower()})")
    return page


def _rows(schema: Mapping[str, Any]) -> list[str]:
    return list(_schema(schema))


def _anchor(heading: str) -> str:
    return heading.replace(".", "")


def _schema(schema: Mapping[str, Any]) -> Iterator[str]:
    if text := schema.get("description"):
        yield text
    required = set(schema.get("required", ()))
    rows = [
        [f"`{name}`", _type(field), "yes" if name in required else "", field.get("description", "")]
        for name, field in schema.get("properties", {}).items()
    ]
    if rows:
        yield table(["field", "type", "required", "meaning"], rows)


def _schema_link(schema: Mapping[str, Any]) -> str:
    names = list(_refs(schema))
    return ", ".join(f"[{name}](#{name.lower()})" for name in names)


def _type(field: Mapping[str, Any]) -> str:
    """Return a field's type in words."""
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in field:
            parts = dict.fromkeys(_type(part) for part in field[key])
            return " or ".join(part for part in parts if part != "null")
    if "const" in field:
        return f'"{field["const"]}"'
    if "enum" in field:
        return ", ".join(f'"{value}"' for value in field["enum"])
    kind = field.get("type", "any")
    if kind == "array" and field.get("items"):
        return f"list of {_type(field['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def errors_page() -> str:
    """Return the page of error codes."""
    rows = [
        [f"`{code}`", str(form.status), form.type, _retry(form), " ".join((cls.__doc__ or "").split())]
        for code, cls in error_codes().items()
        for form in [wire_form(cls)]
    ]
    early = [[f"`{code}`", str(status.value), text] for status, (code, text) in REFUSALS.items()]
    return f"""# Errors

Every refusal is JSON: `{{"error": {{"message", "type", "param", "code"}}}}`. On Ollama's routes it is
`{{"error": "message"}}`. On Anthropic's it is
`{{"type": "error", "error": {{"type", "message", "details"}}, "request_id"}}` with Anthropic's types, and `code` is
`details.error_code`. Its status 529 stands for 429, and for 503 if the type is `unavailable_error`.

`code` does not change between versions. `param` names the field at fault. `message` says what happened, the value, and
what to do.

On a WebSocket, an error before a response exists is an `error` event with the same fields. After that it is the `error`
of `response.failed`.

"yes" under retry: the answer has the headers `Retry-After` and `retry-after-ms`. A 5xx with "no" has
`x-should-retry: false`, which stops OpenAI's clients from trying again.

{table(["code", "HTTP status", "type", "retry", "meaning"], rows)}

More codes are those of requests that the HTTP server refuses:

{table(["code", "HTTP status", "meaning"], early)}
"""


def _retry(form: WireForm) -> str:
    if form.may_pass:
        return "yes, after `Retry-After`"
    return "no" if form.retry is False or form.status < HTTPStatus.INTERNAL_SERVER_ERROR else ""


def metrics_page() -> str:
    """Return the page of metrics."""
    rows: list[tuple[str, str, tuple[str, ...], str]] = []
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase | FastHistogram):
            (family,) = metric.collect()
            labels = metric.label_names if isinstance(metric, FastHistogram) else metric._labelnames
            rows.append((family.name, family.type, labels, family.documentation))
    for family in gauges(Snapshot([], 0)):
        rows.append((family.name, family.type, vars(family)["_labelnames"], family.documentation))
    cells = [
        [f"`{_exported(name, kind)}`", kind, ", ".join(f"`{label}`" for label in labels), text]
        for name, kind, labels, text in sorted(rows)
    ]
    return f"""# Metrics

`GET /metrics` answers in Prometheus's text format. It needs the owner, or a token with the scope `admin`.
[Watch the daemon](../howto/watch.md) shows how to scrape it.

No metric holds a prompt, an answer or a client's own words. Times are in seconds, sizes in bytes. A histogram has the
suffixes `_bucket`, `_sum` and `_count`. On Linux the usual `process_*` metrics of the daemon's process are there too.

{table(["metric", "type", "labels", "meaning"], cells)}
"""


def _exported(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" and not name.endswith("_total") else name


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for page, content in pages().items():
        (folder / page).write_text(content, encoding="utf-8")
