"""A2: tokens are compared as digests in constant time, and are too long to be guessed."""

from __future__ import annotations

import ast
import hmac
import inspect
import random
import statistics
import time
from pathlib import Path

import pytest

from edgeagent.api.gate import access
from edgeagent.credentials import decision, keys
from edgeagent.credentials.keys import KeyRing, Scope, add_client, ensure_token


@pytest.mark.parametrize("module", [keys, decision, access])
def test_secrets_are_no_operands_of_a_comparison(module: object) -> None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):  # type: ignore[arg-type]
        if isinstance(node, ast.Compare):
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            calls = {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
            assert not names & {"token", "wanted", "token_digest", "digest"}, ast.unparse(node)
            assert not calls & {"digest", "header_tokens", "subprotocol_tokens"}, ast.unparse(node)


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
