"""How tiny models' own tokenizers turn prompts and queries into tokens."""

from __future__ import annotations

import random
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.model import Model
from edgeagent.errors import ContextLengthExceeded, InvalidRequest, NotSupported
from edgeagent.text.template.rendered import Rendered
from edgeagent.text.vocabulary import LongTextVocabulary, special_texts
from edgeagent.types import (
    ChatPrompt,
    Detokenize,
    Media,
    MediaPlace,
    MemoryKind,
    Message,
    RenderPrompt,
    TextPrompt,
    Tokenize,
    TokenPrompt,
    Tool,
)
from edgeagent.worker.child.prompt import (
    MAX_COUNTED_CHARS,
    PromptReader,
    ReadPrompt,
    answer_query,
    describe_no_media,
    make_template,
)
from edgeagent.worker.protocol import Load
from tests.local_template import open_here
from tests.models import FILE_TOKENS, INFILL_TOKENS, make_tiny_model

PARTS = (
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "<think>",
    "<|im_",
    "<",
    "tool_call>",
    " the ",
    "\n",
    "  ",
    "é",
    "10",
)


LOAD = Load("tiny", "/tiny.gguf", None, EngineConfig(), why_no_projector="Pull one: edgeagent pull seeing")


class Tools:
    """A model's text tools, combined as in the host."""

    def __init__(self, path: Path) -> None:
        self.model = Model(path, EngineConfig())
        special = special_texts(self.model)
        self.vocabulary = LongTextVocabulary(self.model, special)
        self.template = make_template(self.model, special, open_here)
        self.reader = PromptReader(
            self.model, self.vocabulary, self.template, 512, why_no_media=describe_no_media(LOAD)
        )


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return Tools(make_tiny_model(path, MemoryKind.FULL_ATTENTION))


@pytest.mark.parametrize("parse_special", [True, False])
def test_long_texts_give_llama_cpps_own_tokens(tools: Tools, parse_special: bool) -> None:
    for seed in range(6):
        chance = random.Random(seed)
        some = chance.sample(PARTS, chance.randint(2, len(PARTS)))
        text = "".join(chance.choice(some) for _ in range(3000))
        expected = tools.model.tokenize(text, parse_special=parse_special)
        assert tools.vocabulary.tokenize(text, parse_special=parse_special) == expected


def test_many_special_texts_are_soon_tokenized(tools: Tools) -> None:
    """llama.cpp alone takes minutes for this many."""
    for text in ("<|im_start|>", "<|im_end|> ", "<tool_call>\n"):
        num = 40_000
        assert len(tools.vocabulary.tokenize(text * num, parse_special=True)) >= num


def test_questions(tools: Tools) -> None:
    def ask(query: Tokenize | Detokenize | RenderPrompt) -> object:
        return answer_query(tools.model, tools.vocabulary, tools.template, query)

    control, *_ = tools.model.tokenize("<|im_end|>", parse_special=True)
    answer = answer_query(tools.model, tools.vocabulary, tools.template, Tokenize("<|im_end|>é", with_pieces=True))
    assert answer.tokens[0] == control
    assert ask(Tokenize("<|im_end|>é")) == type(answer)(tokens=answer.tokens)
    assert b"".join(answer.pieces).decode() == "<|im_end|>é"
    assert ask(Detokenize(answer.tokens)) == type(answer)("<|im_end|>é")
    assert ask(Detokenize((answer.tokens[1],))) == type(answer)("\ufffd")
    with pytest.raises(InvalidRequest) as caught:
        ask(Detokenize((1, tools.model.num_tokens)))
    assert caught.value.param == "tokens"
    prompt = ChatPrompt((Message("user", "Hi"),))
    rendered = answer_query(tools.model, tools.vocabulary, tools.template, RenderPrompt(prompt))
    assert rendered.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert list(rendered.tokens) == tools.reader.read(prompt).tokens


@pytest.mark.parametrize(
    ("context_length", "num_chars", "is_counted"), [(512, 0, True), (512, 1, False), (70_000, 1, True)]
)
def test_what_would_be_counted_for_seconds_and_cannot_fit_is_refused(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, context_length: int, num_chars: int, is_counted: bool
) -> None:
    rendered = list[ChatPrompt]()

    def render(prompt: ChatPrompt) -> Rendered:
        rendered.append(prompt)
        return Rendered("Hi", (("Hi", True),))

    monkeypatch.setattr(tools.template, "render", render)
    half = "x" * (MAX_COUNTED_CHARS // 2)
    query = RenderPrompt(ChatPrompt((Message("user", half), Message("assistant", "", half + num_chars * "x"))))
    with nullcontext() if is_counted else pytest.raises(ContextLengthExceeded):
        answer_query(tools.model, tools.vocabulary, tools.template, query, context_length=context_length)
    assert rendered == ([query.prompt] if is_counted else [])


def test_a_template_that_writes_too_much_is_refused_before_the_tokens_are_counted(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * (MAX_COUNTED_CHARS + 1)
    monkeypatch.setattr(tools.template, "render", lambda _: Rendered(text, ((text, True),)))
    monkeypatch.setattr(LongTextVocabulary, "tokenize", lambda *_, **__: pytest.fail("it was tokenized"))
    with pytest.raises(ContextLengthExceeded):
        answer_query(tools.model, tools.vocabulary, tools.template, RenderPrompt(ChatPrompt((Message("user", "x"),))))


def test_the_same_instructions_are_rendered_alone_once(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one client. The number of their tokens is the same as without this, also if the template writes the time."""
    rendered, clock = list[ChatPrompt](), ""
    render = tools.template.render

    def count(prompt: ChatPrompt) -> Rendered:
        rendered.append(prompt)
        text = clock + render(prompt).text
        return Rendered(text, ((text, True),))

    monkeypatch.setattr(tools.template, "render", count)
    seen = dict[str, int]()
    for turn, (system, partition, num_renderings) in enumerate(
        (
            ("Be brief.", "", 2),
            ("Be brief.", "", 1),
            ("Be brief. No", "", 2),
            ("Be brief.", "", 1),
            ("Be brief.", "b", 2),
        )
    ):
        rendered.clear()
        prompt = ChatPrompt((Message("system", system), Message("user", f"Turn {turn}")))
        num_system = tools.reader.read(prompt, partition=partition).num_system
        assert len(rendered) == num_renderings
        assert 0 < num_system == seen.setdefault(system, num_system)
    assert seen["Be brief."] < seen["Be brief. No"]
    for clock in ("10:01 ", "10:02 ", "It is 10:03 "):
        prompt = ChatPrompt((Message("system", "Be brief."), Message("user", clock)))
        num_clock = len(tools.vocabulary.tokenize(clock, parse_special=True))
        assert tools.reader.read(prompt, partition="b").num_system == seen["Be brief."] + num_clock


def test_what_is_no_prompt_is_refused(tools: Tools) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tools.reader.read(TokenPrompt((1, -1)))
    assert caught.value.param == "prompt"
    for prompt in (TextPrompt("x" * 100_000), ChatPrompt((Message("user", "x" * 100_000),))):
        with pytest.raises(ContextLengthExceeded):
            tools.reader.read(prompt)


def test_a_model_without_a_projector_says_what_to_pull(tools: Tools) -> None:
    data = b"GIF89a"
    media = (Media("image", data, sha256(data).digest()),)
    prompt = ChatPrompt((Message("user", "What is this?", media=(MediaPlace(0, 0),)),), media=media)
    with pytest.raises(NotSupported) as caught:
        tools.reader.read(prompt)
    assert caught.value.message == (
        "tiny takes no images and no sounds: it has no projector (a file mmproj-*.gguf), which reads them. Pull one: "
        "edgeagent pull seeing"
    )
    with pytest.raises(NotSupported):
        answer_query(tools.model, tools.vocabulary, tools.template, RenderPrompt(prompt), why_no_media="no")


@pytest.mark.parametrize("with_files", [True, False])
def test_other_files_stand_before_a_gap(tmp_path: Path, with_files: bool) -> None:
    """Each file has the model's mark, or its name alone if there is no mark."""
    tools = Tools(
        make_tiny_model(
            tmp_path / "tiny.gguf", MemoryKind.FULL_ATTENTION, controls=FILE_TOKENS if with_files else INFILL_TOKENS
        )
    )
    files = (("a.py", "A = 1\n"), ("b.py", "<|fim_middle|>"))
    gap = tools.reader.read(TextPrompt("the boy ", " the town"))
    read = tools.reader.read(TextPrompt("the boy ", " the town", files=files))
    num_bos = int(tools.model.bos_token is not None)
    assert read.tokens[-len(gap.tokens[num_bos:]) :] == gap.tokens[num_bos:]
    assert (
        b"".join(map(tools.model.piece, read.tokens))
        .decode()
        .endswith(
            "<|repo_name|>myproject\n<|file_sep|>a.py\nA = 1\n<|file_sep|>b.py\n<|fim_middle|><|file_sep|>filename\n"
            "<|fim_prefix|>the boy <|fim_suffix|> the town<|fim_middle|>"
            if with_files
            else "a.py\nA = 1\n\n\nb.py\n<|fim_middle|>\n\n<|fim_prefix|>the boy <|fim_suffix|> the town<|fim_middle|>"
        )
    )
    marks = tools.model.infill_tokens
    assert marks is not None
    assert read.tokens.count(marks.middle) == 1  # a mark in a file is plain text
    with pytest.raises(ContextLengthExceeded):
        tools.reader.read(TextPrompt("a", "b", files=(("a.py", "x" * 100_000),)))


def test_instructions_are_the_tokens_that_another_question_begins_with_too(tools: Tools) -> None:
    def read(question: str, *system: Message, **options: object) -> ReadPrompt:
        return tools.reader.read(ChatPrompt((*system, Message("user", question)), **options))  # type: ignore[arg-type]

    system = Message("system", "be kind to cats")
    one, other = read("one?", system), read("Two?", system)
    assert 0 < one.num_system < len(one.tokens)
    assert one.num_system == other.num_system
    assert one.tokens[: one.num_system] == other.tokens[: one.num_system]
    assert one.tokens[one.num_system] != other.tokens[one.num_system]
    with_tool = read("one?", tools=(Tool("lamp", "Switches a lamp.", "{}"),))
    text = b"".join(map(tools.model.piece, with_tool.tokens[: with_tool.num_system])).decode()
    assert "lamp" in text
    assert text.endswith("<|im_start|>user\n")
    assert read("one?").num_system == 0


def conversation(num_turns: int, words: int = 2) -> tuple[Message, ...]:
    chance = random.Random(3)
    messages = [Message("system", "be kind to cats")]
    for index in range(num_turns):
        text = " ".join(chance.choice(("cats", "dogs", "maps", "the")) for _ in range(words))
        messages += [Message("user", f"{index} {text}?"), Message("assistant", f"{text}.")]
    return (*messages, Message("user", "and now?"))


def test_a_conversation_that_is_too_long_loses_its_front_where_that_is_wanted(tools: Tools) -> None:
    messages = conversation(16)
    prompt = ChatPrompt(messages, truncate=True)
    whole = tools.reader.read(ChatPrompt(messages))
    assert (whole.num_dropped_items, len(whole.tokens) > 512) == (0, True)
    for max_tokens, most in ((None, 512 - 64), (5000, 512 - 128), (10, 502)):
        read = tools.reader.read(prompt, max_tokens)
        assert 0 < len(read.tokens) <= most
        assert read.text is not None and "be kind to cats" in read.text and "and now?" in read.text
        assert read.text.count("<|im_start|>") == len(messages) - read.num_dropped_items + 1
    read = tools.reader.read(prompt, max_prompt=200)
    assert 100 < len(read.tokens) <= 200 and read.text is not None and "be kind to cats" in read.text
    # What cannot be cut that far is returned, and refused by `check_budget`.
    assert len(tools.reader.read(prompt, max_prompt=5).tokens) > 5
    short = ChatPrompt(messages[:5], truncate=True)
    assert tools.reader.read(short) == tools.reader.read(ChatPrompt(messages[:5]))


def test_the_next_turns_find_their_beginning_again(tools: Tools) -> None:
    """If the turns found no common prefix, each would be computed from its first token."""
    reads = []
    for num_turns in range(20, 60):
        reads.append(tools.reader.read(ChatPrompt(conversation(num_turns), truncate=True)))
    num_dropped = [read.num_dropped_items for read in reads]
    assert num_dropped == sorted(num_dropped)
    moves = [index for index in range(1, len(reads)) if num_dropped[index] != num_dropped[index - 1]]
    assert 2 <= len(moves) <= len(reads) // 3, num_dropped
    for index in range(1, len(reads)):
        if index not in moves:
            before, now = reads[index - 1].tokens, reads[index].tokens
            # All but the previous last question and the start of its answer.
            assert now[: len(before) - 20] == before[: len(before) - 20]
    # After a move there is room for more turns.
    assert min(len(reads[index].tokens) for index in moves) <= 512 * 3 // 4


def test_what_cannot_be_dropped_is_refused_with_its_length(tools: Tools) -> None:
    long = " ".join(["cats"] * 3000)
    for messages in ((Message("user", long),), (Message("system", long), *conversation(3))):
        with pytest.raises(ContextLengthExceeded):
            if len(tools.reader.read(ChatPrompt(messages, truncate=True)).tokens) > 512:
                raise ContextLengthExceeded("the engine says how many")


def test_a_huge_conversation_is_soon_cut(tools: Tools) -> None:
    messages = (*conversation(2000, 200), Message("user", "well?"))
    read = tools.reader.read(ChatPrompt(messages, truncate=True))
    assert len(read.tokens) <= 512
    assert read.text is not None and "well?" in read.text
