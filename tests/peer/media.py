"""Measures questions about an image, and streams beside one: `python -m tests.peer.media`.

The text model is of the shelf, and its projector has random weights, so only times mean anything. Each figure is given
with that of a text of the same length.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from edgeagent.bench.stats import median, quantile
from edgeagent.config import EngineConfig
from edgeagent.engine.sequence import Sequence
from edgeagent.types import ChatPrompt, GenerateRequest, Media, Message, SamplingParams
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.protocol import Load
from tests.local_template import open_here
from tests.peer.shelf import SHAPES, TWINS, make_model
from tests.peer.shelf.shapes import SEEING, SEEING_TWIN, Shape
from tests.projectors import Kind, Size, make_projector, medium, png, question

BUDGET_MS = 100.0
STREAM_TOKENS = 400
QUESTION = "What is on this picture, what is beside it, and what would you do with it if it were yours?"


class Bench:
    """A model that answers in this process, one step after the other."""

    def __init__(self, folder: Path, shape: Shape, kind: Kind, size: Size, num_streams: int) -> None:
        path = make_model(folder / "model.gguf", shape)
        projector = make_projector(folder / "mmproj.gguf", kind, width=shape.width, size=size)
        config = EngineConfig(ctx=min(8192, shape.context_length), itl_budget_ms=BUDGET_MS, parallel=num_streams + 1)
        load = Load("model", str(path), None, config, projector_path=str(projector))
        self.host = Host(load, open_model(load), open_here)
        self._num = 0

    def begin(self, prompt: ChatPrompt, max_tokens: int) -> Sequence:
        self._num += 1
        sampling = SamplingParams(temperature=0.0)
        request = GenerateRequest(f"r{self._num}", "", prompt, sampling=sampling, max_tokens=max_tokens)
        return self.host.engine.add(self.host.prepare(request).spec)

    def first_token_ms(self, prompt: ChatPrompt) -> tuple[float, int, int]:
        """Return when the first token came, how many tokens the prompt has, and how many of them were cached."""
        started_s = time.perf_counter()
        sequence = self.begin(prompt, 1)
        while not any(output.sequence is sequence and output.is_last for output in self.host.engine.step()):
            pass
        return 1000 * (time.perf_counter() - started_s), sequence.num_prompt, sequence.num_cached

    def gaps_ms(self, image: Media | None, num_streams: int) -> tuple[list[float], float]:
        """Return the gaps between the tokens of streams, and the first token about an image that begins among them."""
        streams = [
            self.begin(ChatPrompt((Message("user", f"Count to {n}."),)), STREAM_TOKENS) for n in range(num_streams)
        ]
        gaps, last = list[float](), dict[str, float]()
        asked: Sequence | None = None
        asked_s = answered_ms = 0.0
        num_left = num_streams
        while num_left:
            outputs = self.host.engine.step()
            now_s = time.perf_counter()
            for output in outputs:
                if output.sequence is asked:
                    answered_ms = 1000 * (now_s - asked_s) if output.is_last else 0.0
                elif output.tokens and output.sequence in streams:
                    if output.sequence.id in last and (image is None or (asked is not None and not answered_ms)):
                        gaps.append(1000 * (now_s - last[output.sequence.id]))
                    last[output.sequence.id] = now_s
                    num_left -= output.is_last
            if image is not None and asked is None and all(each.num_output > 20 for each in streams):
                asked_s = time.perf_counter()
                asked = self.begin(question(QUESTION, image), 1)
        return gaps, answered_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen2-vl-0.5b", choices=(*SHAPES, SEEING.name))
    parser.add_argument("--tiny", action="store_true", help="take the shape's tiny version, to try this program")
    parser.add_argument("--kind", default="qwen2vl_merger", choices=("gemma3", "lfm2", "qwen2vl_merger"))
    parser.add_argument("--side", type=int, default=896, help="of the image, in pixels")
    parser.add_argument("--patch", type=int, default=14)
    parser.add_argument("--width", type=int, default=384, help="of the image's encoder")
    parser.add_argument("--layers", type=int, default=6, help="of the image's encoder")
    parser.add_argument("--streams", type=int, default=4)
    options = parser.parse_args()
    size = Size(
        options.width, 4 * options.width, options.layers, max(2, options.width // 64), options.patch, options.side
    )
    with tempfile.TemporaryDirectory() as folder:
        shapes = TWINS | {SEEING.name: SEEING_TWIN} if options.tiny else SHAPES | {SEEING.name: SEEING}
        shape = shapes[options.shape]
        bench = Bench(Path(folder), shape, options.kind, size, options.streams)
        images = [medium(png(seed, options.side, options.side)) for seed in range(4)]
        bench.first_token_ms(question("Warm up.", images[0]))
        first, num_prompt, _ = bench.first_token_ms(question(QUESTION, images[1]))
        second, _, num_cached = bench.first_token_ms(question(QUESTION.replace("picture", "image"), images[1]))
        text = ChatPrompt((Message("user", " ".join(str(n) for n in range(num_prompt // 4))),))
        longer = ChatPrompt((Message("user", f"{text.messages[0].content} {QUESTION}"),))
        text_ms, num_text, _ = bench.first_token_ms(text)
        turn_ms, _, num_kept = bench.first_token_ms(longer)
        print(f"prompt: {num_prompt} tokens with the image, {num_text} of text")
        print(
            f"first question {first:.0f} ms, second {second:.0f} ms ({num_cached} cached): {second / first:.3f} of it"
        )
        print(f"first text {text_ms:.0f} ms, its next turn {turn_ms:.0f} ms ({num_kept} cached)")
        for name, image in (("alone", None), ("beside an image", images[2])):
            gaps, answered_ms = bench.gaps_ms(image, options.streams)
            print(
                f"{options.streams} streams {name}: gaps p50 {median(gaps):.1f} ms, p95 {quantile(gaps, 0.95):.1f} ms, "
                f"most {max(gaps):.1f} ms of {len(gaps)}; the image's answer after {answered_ms:.0f} ms"
            )
        bench.host.close()


if __name__ == "__main__":
    main()
