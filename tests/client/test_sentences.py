"""The splitter of sentences, by its table of cases. tests/integration/test_client_js.py runs it in JavaScript."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.client.sentences import Sentences

CASES: list[tuple[str, str, list[str]]] = json.loads((Path(__file__).parent / "sentences.json").read_text("utf-8"))


def split(parts: Iterable[str]) -> list[str]:
    splitter = Sentences()
    return [sentence for part in parts for sentence in splitter.add(part)] + splitter.end()


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_table_in_whole_and_by_characters(text: str, expected: list[str]) -> None:
    assert split([text]) == expected
    assert split(text) == expected


@given(st.text('aB1.!?…。」とM \n"Iदा।'), st.data())
def test_how_the_text_is_cut_into_parts_does_not_matter(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    sentences = split([text])
    assert split(parts) == sentences
    assert "".join("".join(sentences).split()) == "".join(text.split()), "nothing is lost"


def test_a_sentence_comes_as_soon_as_it_is_whole() -> None:
    splitter = Sentences()
    assert splitter.add("It is on. ") == []
    assert splitter.add("D") == ["It is on."]
    assert splitter.add("one。") == []
    assert splitter.add("次") == ["Done。"]
    assert splitter.add("の\n") == ["次の"]
    assert splitter.end() == []


def test_a_long_text_without_an_end_is_looked_at_once() -> None:
    splitter = Sentences()
    for _ in range(20_000):
        assert splitter.add("word, ") == []
    assert len(splitter.end()[0]) == 6 * 20_000 - 1
