"""The flags of `edgeagent bench`, and its help text."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

Transport = Literal["auto", "ws", "http"]

# The help of the command itself. Its first line is a summary.
HELP = """Measure how fast a server answers, over its wire; takes about a minute with a small model.

decode: tokens/s of one stream. ttft: time to the first token, of a new prompt and of one that differs from an earlier
one only at its end. parallel: several streams at once. hol: how long a new long prompt delays live streams
(head-of-line blocking).

\b
edgeagent bench                                          this machine's daemon
edgeagent bench --scenario decode --rounds 20            one of them, with more rounds
edgeagent bench --scenario ttft --prompt-tokens 4000     how long do long prompts take?
edgeagent bench http://127.0.0.1:8080                    llama-server, vLLM, ...
edgeagent bench --against http://127.0.0.1:8080          ours against it, A B A B ...
edgeagent bench ws://127.0.0.1:8127 --against http://127.0.0.1:8127 --transport http
edgeagent bench --json > before.json

A ws:// URL is always measured over the WebSocket. Rates count the tokens that the server produced. Answers that it ends
early shorten a round, and the report counts them. Ctrl-C prints the measurements so far.
"""


class ScenarioName(StrEnum):
    """The names of the scenarios. They are repeated here, so that `--help` does not import the modules that measure."""

    DECODE = "decode"
    TTFT = "ttft"
    PARALLEL = "parallel"
    HOL = "hol"


Url = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="An OpenAI-compatible server; default: the daemon, started if needed."),
]
Against = Annotated[
    str | None, typer.Option("--against", metavar="URL2", help="Measure this server too, in alternation, and compare.")
]
Scenarios = Annotated[
    list[ScenarioName] | None,
    typer.Option(
        "--scenario",
        metavar="NAME",
        help=f"What to measure; may be repeated. {', '.join(ScenarioName)}. Default: all.",
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="How many rounds to measure.")]
PromptTokens = Annotated[
    int, typer.Option("--prompt-tokens", min=64, metavar="N", help="Length of the long prompts of ttft and hol.")
]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", min=8, metavar="N", help="Length of the answers of decode and parallel.")
]
Parallel = Annotated[
    int, typer.Option("--parallel", min=2, metavar="N", help="Streams in parallel; hol has N - 1 and the long prompt.")
]
TransportFlag = Annotated[
    Transport, typer.Option("--transport", help="auto: the WebSocket if the server is an edgeagent.")
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model; default: the server's first one.")
]
ApiKey = Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="The API key for URL.")]
AgainstModel = Annotated[str | None, typer.Option("--against-model", metavar="NAME", help="As --model, for URL2.")]
AgainstApiKey = Annotated[str | None, typer.Option("--against-api-key", metavar="KEY", help="As --api-key, for URL2.")]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="The seed of the prompts' words; default: a new one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with every sample.")]
StateDir = Annotated[Path | None, typer.Option("--state-dir", metavar="DIR", help="The daemon's state folder.")]
