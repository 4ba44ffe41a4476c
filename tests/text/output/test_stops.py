import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.text.output.stream import StopMatcher

_SHORT = st.text("ab\n", min_size=1, max_size=4)


def _first_complete(text: str, stops: list[str]) -> tuple[str, str | None]:
    """A slow reference: read character by character until a stop string is complete."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def _run(matcher: StopMatcher, parts: list[str]) -> tuple[str, str | None]:
    shown = ""
    for part in parts:
        safe, stop = matcher.feed(part)
        shown += safe
        if stop is not None:
            return shown, stop
    return shown + matcher.flush(), None


def test_text_passes_at_once_when_it_cannot_begin_a_stop() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("Hello") == ("Hello", None)
    assert matcher.feed(" E") == (" ", None)
    assert matcher.feed("N") == ("", None)
    assert matcher.feed("Dx") == ("", "END")


def test_text_held_back_is_shown_when_it_turns_out_harmless() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.feed("a\n\nU") == ("a", None)
    assert matcher.feed("p") == ("\n\nUp", None)
    assert matcher.feed("\n") == ("", None)
    assert matcher.flush() == "\n"
    assert matcher.flush() == ""


def test_without_stops_everything_passes() -> None:
    matcher = StopMatcher(["", ""])
    assert matcher.feed("abc") == ("abc", None)


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["ab", "xabc"], "xabc", ("x", "ab")),
        (["b", "ab"], "ab", ("", "ab")),
        (["aab"], "aaab", ("a", "aab")),
        (["abab", "abc"], "ababc", ("", "abab")),
        (["😀"], "hi 😀 there", ("hi ", "😀")),
    ],
)
def test_the_stop_that_is_complete_first_wins(stops: list[str], text: str, expected: tuple[str, str]) -> None:
    assert _run(StopMatcher(stops), [text]) == expected
    assert _run(StopMatcher(stops), list(text)) == expected


@given(st.lists(_SHORT, max_size=4), st.lists(st.text("ab\n", max_size=6), max_size=12))
def test_no_cut_changes_the_result_and_no_stop_leaks(stops: list[str], parts: list[str]) -> None:
    assert _run(StopMatcher(stops), parts) == _first_complete("".join(parts), stops)


@given(st.lists(_SHORT, min_size=1, max_size=4), st.lists(st.text("ab\n", max_size=6), max_size=12))
def test_what_is_shown_never_has_to_be_taken_back(stops: list[str], parts: list[str]) -> None:
    matcher = StopMatcher(stops)
    final, _ = _first_complete("".join(parts), stops)
    shown = ""
    for part in parts:
        safe, stop = matcher.feed(part)
        shown += safe
        assert final.startswith(shown)
        if stop is not None:
            break
