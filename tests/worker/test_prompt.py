"""What tiny models' own tokenizers make of prompts and questions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.model import Model
from edgeagent.errors import ContextLengthExceeded, InvalidRequest
from edgeagent.text.long_text import LongTextVocabulary
from edgeagent.text.vocabulary import special_texts
from edgeagent.types import (
    ChatPrompt,
    Detokenize,
    MemoryKind,
    Message,
    RenderPrompt,
    TextPrompt,
    Tokenize,
    TokenPrompt,
    Tool,
)
from edgeagent.worker.prompt import PromptReader, ReadPrompt, answer_query, make_template
from tests.models import make_tiny_model

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


class Tools:
    """A model's text tools, as the host puts them together."""

    def __init__(self, path: Path) -> None:
        self.model = Model(path, EngineConfig())
        special = special_texts(self.model)
        self.vocabulary = LongTextVocabulary(self.model, special)
        self.template = make_template(self.model, special)
        self.reader = PromptReader(self.model, self.vocabulary, self.template, 512)


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
    """llama.cpp alone takes minutes for as many."""
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


def test_what_is_no_prompt_is_refused(tools: Tools) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tools.reader.read(TokenPrompt((1, -1)))
    assert caught.value.param == "prompt"
    for prompt in (TextPrompt("x" * 100_000), ChatPrompt((Message("user", "x" * 100_000),))):
        with pytest.raises(ContextLengthExceeded):
            tools.reader.read(prompt)


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
