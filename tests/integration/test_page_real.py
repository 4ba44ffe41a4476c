"""`edgeagent open` with a real daemon: the link that it prints lets a browser in, once."""

from __future__ import annotations

import json

import httpx
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from edgeagent.api.gate.access import TOKEN_SUBPROTOCOL
from tests.integration.conftest import Daemon


def test_a_printed_link_lets_a_browser_in(daemon: Daemon) -> None:
    address, _, secret = daemon.run("open", "--scope", "infer").strip().partition("/#link=")
    assert address == daemon.url
    exchange = {"url": f"{address}/edgeagent/page/token", "json": {"secret": secret}, "headers": {"origin": address}}
    token = httpx.post(**exchange).json()["token"]  # type: ignore[arg-type]
    assert httpx.post(**exchange).status_code == 401  # type: ignore[arg-type]
    [browser] = json.loads(daemon.run("token", "list", "--json"))
    assert (browser["is_browser"], browser["scopes"]) == (True, ["infer"])
    protocols = [Subprotocol("edgeagent"), Subprotocol(TOKEN_SUBPROTOCOL + token)]
    socket_url = f"{address.replace('http', 'ws')}/v1/responses"
    with connect(socket_url, origin=Origin(address), subprotocols=protocols) as socket:
        socket.send(json.dumps({"type": "response.create", "input": "Hello", "max_output_tokens": 4}))
        while (event := json.loads(socket.recv()))["type"] not in ("response.completed", "response.incomplete"):
            assert event["type"].startswith("response.")
    assert event["response"]["edgeagent"]["stages_ms"]["first_token"] > 0
    daemon.run("token", "remove", browser["name"])
    shown = {"authorization": f"Bearer {token}"}
    assert httpx.get(f"{address}/v1/models", headers=shown).status_code == 401
