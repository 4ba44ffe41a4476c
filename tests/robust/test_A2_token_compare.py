"""A2: tokens are compared as digests in constant time and are long; wrong tokens are rate-limited."""

from __future__ import annotations

import ast
import asyncio
import hmac
import inspect
import random
import statistics
import time
from pathlib import Path

import pytest

from edgeagent.api.gate import access
from edgeagent.api.gate.access import Access
from edgeagent.credentials import decision, keys
from edgeagent.credentials.decision import FAILURES_WINDOW_S, MAX_FAILURES
from edgeagent.credentials.keys import Client, KeyRing, Scope, add_client, ensure_token
from edgeagent.errors import EdgeAgentError, Overloaded, Unauthorized
from tests.owner_key import OwnerKey


@pytest.mark.parametrize("module", [keys, decision, access])
def test_secrets_are_no_operands_of_a_comparison(module: object) -> None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):  # type: ignore[arg-type]
        if isinstance(node, ast.Compare):
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            calls = {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
            assert not names & {"token", "wanted", "token_digest", "digest"}, ast.unparse(node)
            assert not calls & {"digest", "bearer_tokens", "subprotocol_tokens"}, ast.unparse(node)


def test_tokens_are_long_and_differ(tmp_path: Path) -> None:
    tokens = {ensure_token(tmp_path), *(add_client(tmp_path, f"c{n}", [Scope.INFER]) for n in range(20))}
    assert len(tokens) == 21
    # token_urlsafe has six bits per character.
    assert min(map(len, tokens)) * 6 >= 128


def test_every_holder_is_compared_whoever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = ensure_token(tmp_path)
    tokens = [owner, *(add_client(tmp_path, f"c{n}", [Scope.INFER]) for n in range(4))]
    calls: list[bytes] = []
    real = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        calls.append(b)
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    ring = KeyRing(tmp_path)
    for token in [*tokens, "wrong"]:
        calls.clear()
        ring.judge([token.encode()])
        assert len(calls) == len(tokens)


def scope(token: str) -> dict[str, object]:
    return {
        "path": "/v1/models",
        "server": ("127.0.0.1", 1),
        "headers": [(b"authorization", f"Bearer {token}".encode())],
    }


def test_wrong_tokens_are_limited_and_the_right_one_is_not() -> None:
    now_s = [0.0]
    access = Access(OwnerKey("right"), is_token_required=True, clock=lambda: now_s[0])

    def judge(scope: dict[str, object]) -> Client:
        verdict, _ = asyncio.run(access.authorize(scope))
        if isinstance(verdict, EdgeAgentError):
            raise verdict
        return verdict

    for _ in range(MAX_FAILURES):
        with pytest.raises(Unauthorized):
            judge(scope("wrong"))
    now_s[0] = 4.0
    for _ in range(3):
        with pytest.raises(Overloaded) as refused:
            judge(scope("wrong"))
        assert refused.value.retry_after_s == FAILURES_WINDOW_S - 4.0
    assert judge(scope("right")).name == ""
    now_s[0] = FAILURES_WINDOW_S + 1
    with pytest.raises(Unauthorized):
        judge(scope("wrong"))


@pytest.mark.slow
def test_the_time_says_nothing_about_the_token(tmp_path: Path) -> None:
    """Welch's t-test for two wrong tokens: one shares all characters but the last with the right token."""
    right = ensure_token(tmp_path)
    key, near, far = KeyRing(tmp_path), f"{right[:-1]}~".encode(), f"~{right[1:]}".encode()
    samples: dict[bytes, list[int]] = {near: [], far: []}
    for _ in range(100_000):
        token = random.choice((near, far))
        start = time.perf_counter_ns()
        key.judge([token])
        samples[token].append(time.perf_counter_ns() - start)
    # Interruptions are not part of the comparison, so the slowest tenth is dropped, as dudect does.
    ours = [sorted(times)[: len(times) * 9 // 10] for times in samples.values()]
    means = [statistics.fmean(times) for times in ours]
    errors = [statistics.variance(times) / len(times) for times in ours]
    assert abs(means[0] - means[1]) / sum(errors) ** 0.5 < 4.5
