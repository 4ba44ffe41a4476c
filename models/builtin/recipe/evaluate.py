"""Judges the shipped pair on held-out prompts, answered greedily by edgeagent's engine, as for any client.

When the model begins a tool call, the grammar allows only calls that match the schemas of the offered tools. `--free`
removes that constraint. A structured answer always follows the schema of its request. The sealed test set is used
unless an option says otherwise. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.types import (
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    OutputFormat,
    SamplingParams,
    TextFormat,
    TokenPrompt,
    Tool,
    ToolCall,
)
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.protocol import Load
from tests.local_template import open_here

from .corpus import SETS, check_disjoint, evaluation_set
from .samples import Check, Sample
from .structured import ANY_OBJECT, leaves

BUILTIN = Path(__file__).resolve().parents[1]
MIN_PROMPTS = 300
MAX_NEW_TOKENS = 160
OUT_OF_DOMAIN = "out_of_domain"
STRUCTURED = "structured"
REPORTED_ONLY = frozenset({"long_prompts", "unseen_tools", "structured_declined"})
BARS = {
    "in_domain": 0.90,
    "tool_calls": 0.95,
    "facts": 0.80,
    STRUCTURED: 0.95,
    OUT_OF_DOMAIN: 0.90,
    "draft_agreement": 0.70,
}
# What stands for a value that was not said
_NOTHING: tuple[Any, ...] = (None, "", [], 0)
_EMPTY: tuple[Any, ...] = (None, "", [])
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the number of right answers, the total, and the required share (the bar), if any."""

    name: str
    right: int
    total: int
    bar: float | None = None

    @property
    def share(self) -> float:
        """Return the share of right answers."""
        return self.right / self.total if self.total else 0.0

    @property
    def is_missed(self) -> bool:
        """Whether the share is below the bar."""
        return self.bar is not None and self.share < self.bar


class Target:
    """The target model in edgeagent's engine; it answers one prompt at a time."""

    def __init__(self, path: Path, threads: int, *, is_free: bool) -> None:
        # One request at a time needs no host cache. Flash attention is off, and not chosen by a measurement.
        config = EngineConfig(
            ctx=2048, parallel=1, threads=threads, cache_memory_bytes=0, flash_attention="off", sandbox=False
        )
        load = Load("target", str(path), None, config)
        self.host = Host(load, open_model(load), open_here)
        self.is_free = is_free

    def answer(self, sample: Sample) -> tuple[list[int], list[int]]:
        """Return the prompt's tokens, and the tokens of the target's reply without its end token."""
        messages, tools = tuple(map(_message, sample.messages[:-1])), tuple(map(_tool, sample.tools))
        prompt: ChatPrompt | TokenPrompt = ChatPrompt(messages, tools)
        if self.is_free:
            spec = self.host.prepare(GenerateRequest("plain", "target", prompt)).spec
            prompt = TokenPrompt(tuple(spec.prompt))
        request = GenerateRequest(
            "ask",
            "target",
            prompt,
            SamplingParams(temperature=0.0),
            max_tokens=MAX_NEW_TOKENS,
            format=_format(sample),
        )
        spec = self.host.prepare(request).spec
        self.host.engine.add(spec)
        tokens: list[int] = []
        while self.host.engine.has_work:
            for output in self.host.engine.step():
                if output.error is not None:
                    raise output.error
                tokens += output.tokens
        return list(spec.prompt), tokens

    def text(self, tokens: list[int]) -> str:
        """Return the text of a reply's tokens."""
        return b"".join(map(self.host.model.piece, tokens)).decode("utf-8", errors="replace")


def _message(message: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], json.dumps(call["function"]["arguments"], ensure_ascii=False))
        for call in message.get("tool_calls", ())
    )
    return Message(message["role"], message["content"], tool_calls=calls, name=message.get("name"))


def _format(sample: Sample) -> OutputFormat:
    if sample.format is None:
        return TextFormat()
    return JsonObjectFormat() if sample.format == ANY_OBJECT else JsonSchemaFormat(json.dumps(sample.format))


def _tool(tool: dict[str, Any]) -> Tool:
    function = tool["function"]
    return Tool(function["name"], function.get("description", ""), json.dumps(function["parameters"]))


class Draft:
    """The draft model in edgeagent's runner. It predicts the next token at each position of the target's replies."""

    def __init__(self, path: Path, threads: int) -> None:
        config = EngineConfig(ctx=2048, parallel=1, threads=threads, flash_attention="off")
        model = Model(path, config)
        self.runner = LlamaRunner(model, config)
        self.stop = next(token for token in range(model.num_tokens) if self.runner.is_end(token))

    def guesses(self, prompt: list[int], reply: list[int]) -> list[int]:
        """Return the most likely next token of this model at each position of another model's reply."""
        tokens, first = prompt + reply[:-1], len(prompt) - 1
        self.runner.clear(0)
        self._decode(tokens[:first], 0, 0)
        guesses = []
        for start in range(first, len(tokens), self.runner.max_outputs):
            chunk = tokens[start : start + self.runner.max_outputs]
            self._decode(chunk, start, len(chunk))
            guesses += [int(self.runner.logits(row).argmax()) for row in range(len(chunk))]
        return guesses

    def _decode(self, tokens: list[int], start: int, num_logits: int) -> None:
        for at in range(0, len(tokens), self.runner.max_batch):
            self.runner.decode([Slice(0, start + at, tokens[at : at + self.runner.max_batch], num_logits)])


def parse_calls(text: str) -> list[dict[str, Any]] | None:
    """Return the calls of a reply; None if one is malformed or the reply has other text."""
    if _CALL.sub("", text).strip():
        return None
    try:
        return [json.loads(body) for body in _CALL.findall(text)]
    except ValueError:
        return None


def is_right(check: Check, text: str) -> bool:
    """Return whether a reply passes a check. See Check for the kinds."""
    match check.kind:
        case "exact":
            return text.strip() in check.values
        case "contains":
            found = (re.search(rf"(?<![\w.]){re.escape(v)}(?!\w|\.\d)", text, re.IGNORECASE) for v in check.values)
            return "<tool_call>" not in text and all(found)
        case "calls":
            calls = parse_calls(text)
            ordered = [json.dumps(c, sort_keys=True) for c in check.calls]
            return calls is not None and sorted(json.dumps(c, sort_keys=True) for c in calls) == sorted(ordered)
        case "owns_up":
            return "small built-in model" in text and "edgeagent pull" in text and text.count(". ") == 0
        case "json" | "json_values":
            expected, got = json.loads(check.values[0]), _parsed(text)
            if check.kind == "json":
                return _agrees(got, expected)
            return isinstance(got, dict) and _agrees(sorted(map(str, leaves(got))), sorted(map(str, leaves(expected))))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _agrees(got: Any, expected: Any) -> bool:
    """Return whether two JSON values are equal, up to case.

    What was not said may be left out, null or empty.
    """
    match expected:
        case dict():
            if not isinstance(got, dict):
                return False
            keys = {**expected, **got}
            return all(
                _agrees(got.get(key), expected[key]) if expected.get(key) not in _EMPTY else got.get(key) in _NOTHING
                for key in keys
            )
        case list():
            return isinstance(got, list) and len(got) == len(expected) and all(map(_agrees, got, expected))
        case str():
            return isinstance(got, str) and got.lower() == expected.lower()
        case _:
            return type(got) is type(expected) and bool(got == expected)


@dataclass(frozen=True, slots=True)
class Failure:
    """A wrong reply: the prompt's category and last question, the expected reply, and the actual one."""

    category: str
    asked: str
    expected: str
    got: str


def _failure(sample: Sample, text: str) -> Failure:
    asked = next(m["content"] for m in reversed(sample.messages[:-1]) if m["role"] in ("user", "tool"))
    last = sample.messages[-1]
    expected = last["content"] or json.dumps([c["function"] for c in last["tool_calls"]])
    return Failure(sample.category, asked, expected, text)


def evaluate(target: Target, draft: Draft, samples: list[Sample]) -> tuple[list[Row], list[Failure]]:
    """Answer the prompts, judge the replies, and compare the draft's tokens with the target's.

    Structured replies are not compared, because the grammar writes much of them. Return the rows of the table, and the
    wrong replies.
    """
    right, total, failures = Counter[str](), Counter[str](), []
    agreed = decoded = 0
    for sample in samples:
        prompt, tokens = target.answer(sample)
        text = target.text(tokens)
        total[sample.category] += 1
        if is_right(sample.check, text):
            right[sample.category] += 1
        else:
            failures.append(_failure(sample, text))
        if sample.format is not None:
            continue
        ended = [*tokens, draft.stop]
        agreed += sum(a == b for a, b in zip(draft.guesses(prompt, ended), ended, strict=True))
        decoded += len(ended)
    rows = [Row(name, right[name], total[name], BARS.get(name)) for name in sorted(total)]
    # Structured answers have a bar of their own, so that the row in_domain stays comparable over time.
    inside = [r for r in rows if r.name not in {OUT_OF_DOMAIN, STRUCTURED} | REPORTED_ONLY]
    rows.append(Row("in_domain", sum(r.right for r in inside), sum(r.total for r in inside), BARS["in_domain"]))
    rows.append(Row("draft_agreement", agreed, decoded, BARS["draft_agreement"]))
    return rows, failures


def _print_table(rows: list[Row]) -> None:
    print(f"{'category':<18}{'right':>7}{'of':>7}{'share':>9}{'bar':>8}")
    for row in rows:
        bar = f"{row.bar:>7.0%}" if row.bar else " " * 7
        print(f"{row.name:<18}{row.right:>7}{row.total:>7}{row.share:>9.1%} {bar}{'  MISSED' if row.is_missed else ''}")


def main() -> None:
    """Read the command line, evaluate, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=BUILTIN / "edgeagent-mini.gguf")
    parser.add_argument("--draft", type=Path, default=BUILTIN / "edgeagent-mini-draft.gguf")
    parser.add_argument("--set", choices=tuple(SETS), default="test", help="which prompts to ask")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--every", type=int, default=1, help="ask only every so many-th prompt, for a quick look")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--free", action="store_true", help="do not hold calls to the schemas of the tools on offer")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--failures", type=int, default=0, help="print up to so many wrong replies to stderr")
    arguments = parser.parse_args()
    if arguments.failures and arguments.set == "test":
        parser.error("--failures needs --set development; whoever reads the test set can no longer be judged by it")
    started = time.monotonic()
    check_disjoint(seed=arguments.seed)
    samples = evaluation_set(arguments.seed, SETS[arguments.set])[:: arguments.every]
    target = Target(arguments.target, arguments.threads, is_free=arguments.free)
    draft = Draft(arguments.draft, arguments.threads)
    rows, failures = evaluate(target, draft, samples)
    in_domain = next(r for r in rows if r.name == "in_domain")
    is_passed = not any(r.is_missed for r in rows) and in_domain.total >= MIN_PROMPTS
    if arguments.json:
        table = [asdict(r) | {"share": round(r.share, 4), "is_missed": r.is_missed} for r in rows]
        seconds = round(time.monotonic() - started, 1)
        print(json.dumps({"set": arguments.set, "is_passed": is_passed, "rows": table, "seconds": seconds}))
    else:
        _print_table(rows)
    for failure in failures[: arguments.failures]:
        print(json.dumps(asdict(failure), ensure_ascii=False), file=sys.stderr)
    sys.exit(0 if is_passed else 1)


if __name__ == "__main__":
    main()
