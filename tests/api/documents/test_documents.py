"""The documents in docs/ equal what the code generates, are complete, and describe every event that is sent."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from edgeagent.api.documents.__main__ import documents
from edgeagent.api.documents.asyncapi import (
    CLIENT_FRAMES,
    REALTIME_FRAMES,
    REALTIME_SERVER_EVENTS,
    SERVER_EVENTS,
    asyncapi_document,
)
from edgeagent.api.documents.components import kind_of
from edgeagent.api.documents.openapi import openapi_document
from edgeagent.api.responses.socket import outbox
from edgeagent.api.routes import DOCUMENTS, NEEDS, PATHS, ROUTES
from edgeagent.api.wire.errors import error_codes
from edgeagent.config import Config, ServerConfig
from edgeagent.daemon import transport
from tests.backends.fake import FakeBackend
from tests.daemon.running import running

ROOT = Path(__file__).parents[3]
API = ROOT / "edgeagent" / "api"
GOLDEN = sorted((ROOT / "tests" / "api" / "golden").glob("*.json"))


@pytest.mark.parametrize("name", ["openapi.json", "asyncapi.json"])
def test_the_files_are_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == documents()[name], "run `make documents`"


def test_every_route_is_described() -> None:
    assert {route.template for route in ROUTES.values()} | {"/v1", "/v1/realtime", *DOCUMENTS} == set(NEEDS)
    for path, methods in openapi_document()["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"].endswith("."), (method, path)


def test_scopes_are_those_of_the_rules() -> None:
    for path, methods in openapi_document()["paths"].items():
        for operation in methods.values():
            scope = PATHS.need_of(re.sub(r"{\w+}", "x", path))
            assert operation.get("x-scope") == (scope.value if scope else None)


def test_every_error_code_is_published() -> None:
    """Codes are class variables of errors, in any module; a subclass without one adds no code."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "edgeagent").rglob("*.py"))
    declared = {
        code for source in sources for code in re.findall(r'^    code(?:: ClassVar.*)? = "(\w+)"$', source, re.M)
    }
    assert {"invalid_stream_id", "internal_error"} < declared == set(error_codes())
    errors_page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    description = openapi_document()["info"]["description"]
    for code in declared:
        assert f"| `{code}` |" in description
        assert f"| `{code}` |" in errors_page


def test_every_close_code_is_named() -> None:
    description = asyncapi_document()["info"]["description"]
    codes = {
        value
        for value in (*vars(outbox).values(), transport.TOO_BIG)
        if isinstance(value, int) and 1000 <= value < 5000
    }
    assert len(codes) == 6 and all(str(code) in description for code in codes)


def _sent_kinds() -> Iterator[str]:
    """Yield the types of events and frames that the API's code names."""
    for path in API.rglob("*.py"):
        if path.parent.name == "documents":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"response\.[a-z_]+(\.[a-z_]+)*", text):
                yield text


def test_every_frame_and_event_is_described() -> None:
    described = {kind_of(frame) for frame in (*CLIENT_FRAMES, *SERVER_EVENTS)}
    realtime = {kind_of(frame) for frame in (*REALTIME_FRAMES, *REALTIME_SERVER_EVENTS)}
    # The code builds the names response.queued and response.in_progress from the response's status.
    named = set(_sent_kinds()) - {"response.compaction", "response.input_tokens", "response.input"}
    assert named <= described | realtime, named - described - realtime
    assert described - named <= {"response.queued", "response.in_progress", "response.processed", "error"}
    assert {kind for kind in realtime - named if kind.startswith("response.")} == set()
    channels = asyncapi_document()["channels"]
    assert set(channels["responses"]["messages"]) == described
    assert set(channels["realtime"]["messages"]) == realtime


def _refs(node: Any) -> Iterator[str]:
    match node:
        case {"$ref": str(ref), **rest}:
            yield ref
            yield from _refs(list(rest.values()))
        case dict():
            yield from _refs(list(node.values()))
        case list():
            for child in node:
                yield from _refs(child)


@pytest.mark.parametrize("make", [openapi_document, asyncapi_document])
def test_references_lead_somewhere_and_schemas_are_schemas(make: Any) -> None:
    document = make()
    for ref in set(_refs(document)):
        node = document
        for part in ref.removeprefix("#/").split("/"):
            node = node[part.replace("~1", "/")]
    for name, schema in document["components"]["schemas"].items():
        jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})
        assert schema.get("description"), name


@functools.cache
def validator(kind: str) -> Any:
    document = asyncapi_document()
    payload = document["components"]["messages"][kind]["payload"]
    return jsonschema_rs.validator_for({**payload, "components": document["components"]})


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_events_are_as_described(path: Path) -> None:
    text = re.sub(r'"<(time|measured)>"', "1", path.read_text(encoding="utf-8"))
    for event in json.loads(text):
        validator(event["type"]).validate(event)


async def test_the_documents_are_served_on_request() -> None:
    async with running(FakeBackend()) as daemon:
        for path in ("/docs", "/openapi.json", "/asyncapi.json"):
            missing = await daemon.http.get(f"{daemon.url}{path}")
            assert missing.status_code == 404
            assert missing.json()["error"]["message"] == f"{path} needs `edgeagent serve --docs`"
    async with running(FakeBackend(), Config(server=ServerConfig(docs=True))) as daemon:
        assert (await daemon.http.get(f"{daemon.url}/openapi.json")).json() == openapi_document()
        assert (await daemon.http.get(f"{daemon.url}/asyncapi.json")).json() == asyncapi_document()
        page = await daemon.http.get(f"{daemon.url}/docs")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "<script" not in page.text and "response.output_text.delta" in page.text
