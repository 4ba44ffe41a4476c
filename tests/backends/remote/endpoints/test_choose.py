"""The choice among endpoints, as a pure function, and the measurements that it uses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeagent.backends.remote.endpoints.averages import Average, Averages
from edgeagent.backends.remote.endpoints.choose import LONG_PROMPT_TOKENS, View, choose
from edgeagent.backends.remote.endpoints.cluster import num_prompt_tokens
from edgeagent.backends.remote.endpoints.health import MAX_FAILURES, MAX_OPEN_S, OPEN_S, Breaker, Pause, RetryBudget
from edgeagent.backends.remote.pseudonyms import Pseudonyms
from edgeagent.types import CachePolicy, ChatPrompt, GenerateRequest, Message, TextPrompt, ToolCall, replace

views = st.lists(
    st.builds(
        View,
        url=st.sampled_from([f"https://{letter}/v1" for letter in "abcdef"]),
        region=st.sampled_from(["", "eu", "us"]),
        is_usable=st.booleans(),
        is_on_trial=st.booleans(),
        first_token_s=st.none() | st.floats(0, 30),
        num_long=st.integers(0, 5),
        num_short=st.integers(0, 50),
        num_waiting=st.integers(0, 50),
        kv_usage=st.floats(0, 1),
    ),
    max_size=6,
    unique_by=lambda view: view.url,
)


@given(views, st.integers(0, 100_000), st.text(max_size=4))
def test_each_usable_endpoint_once_and_those_on_trial_last(many: list[View], num_tokens: int, session: str) -> None:
    order = choose(many, num_tokens, session)
    assert sorted(order) == [index for index, view in enumerate(many) if view.is_usable]
    trials = [many[index].is_on_trial for index in order]
    assert trials == sorted(trials)
    assert choose(many, num_tokens, session) == order


def test_the_soonest_first() -> None:
    many = [View("a", first_token_s=0.9), View("b", first_token_s=0.3), View("c")]
    assert choose(many, 100) == [2, 1, 0]
    assert choose([View("a", num_waiting=9), View("b", first_token_s=0.5)], 100) == [1, 0]
    assert choose([View("a", kv_usage=0.99), View("b", first_token_s=0.5)], 100) == [1, 0]


def test_long_prompts_and_short_chats_are_kept_apart() -> None:
    many = [View("chats", num_short=3), View("long", num_long=3)]
    assert choose(many, LONG_PROMPT_TOKENS) == [1, 0]
    assert choose(many, LONG_PROMPT_TOKENS - 1) == [0, 1]


def test_the_first_region_is_home_until_it_is_much_slower() -> None:
    here, there = View("a", "eu", first_token_s=0.5), View("b", "us", first_token_s=0.3)
    assert choose([here, there], 100) == [0, 1]
    slow = View("a", "eu", first_token_s=5.0)
    assert choose([slow, there], 100) == [1, 0]
    down = View("a", "eu", is_usable=False)
    assert choose([down, there, View("c", "eu", first_token_s=0.6)], 100) == [1, 2]
    assert choose([View("a", "eu", first_token_s=0.6), there, View("c", "eu", first_token_s=0.5)], 100) == [2, 0, 1]


def test_a_conversation_keeps_its_endpoint() -> None:
    many = [View(f"https://{number}/v1") for number in range(4)]
    homes = {session: choose(many, 100, session)[0] for session in map(str, range(400))}
    counts = [list(homes.values()).count(index) for index in range(4)]
    assert min(counts) > 60, "conversations are spread"
    without = [*many[:3], View(many[3].url, is_usable=False)]
    for session, home in homes.items():
        assert home == 3 or choose(without, 100, session)[0] == home, "only those of the lost one move"
    busy = [View(view.url, first_token_s=3.0 if index == homes["0"] else 0.2) for index, view in enumerate(many)]
    assert choose(busy, 100, "0")[0] != homes["0"]


def test_averages() -> None:
    averages = Averages()
    assert averages.first_token_s(10, 0) is None and averages.token_s(0) is None
    averages.note_first_token(2000, 1.0, 0)
    averages.note_first_token(2000, 2.0, 1)
    assert averages.first_token_s(2000, 1) == 1.2
    assert averages.first_token_s(10, 1) == 1.2, "of longer prompts it is an upper bound"
    assert averages.first_token_s(50_000, 1) == 4.8, "of shorter ones it is stretched, up to four times"
    averages.note_tokens(10, 1.0, 1)
    averages.note_tokens(0, 1.0, 1)
    assert averages.token_s(1) == 0.1
    assert averages.first_token_s(2000, 302) is None, "what is old is forgotten"
    average = Average()
    average.add(9.0, 0)
    average.add(1.0, 1000)
    assert average.value(1000) == 1.0


def test_the_breaker() -> None:
    breaker = Breaker()
    for _ in range(MAX_FAILURES - 1):
        breaker.fail(0, "cut")
    breaker.succeed()
    for number in range(MAX_FAILURES):
        assert breaker.accepts_requests(0), number
        breaker.fail(0, "cut")
    assert breaker.state(0) == "open" and breaker.seconds_left(10) == OPEN_S - 10
    breaker.fail(29, "late")
    assert breaker.seconds_left(29) == 1, "the end of what had begun before changes nothing"
    breaker.begin()
    assert breaker.state(OPEN_S) == "half_open" and not breaker.accepts_requests(OPEN_S)
    breaker.give_up()
    assert breaker.accepts_requests(OPEN_S)
    now_s = OPEN_S
    for _ in range(9):
        breaker.begin()
        breaker.fail(now_s, "again")
        now_s += breaker.seconds_left(now_s)
    breaker.begin()
    breaker.fail(now_s, "again")
    assert breaker.seconds_left(now_s) == MAX_OPEN_S
    breaker.forgive()
    assert breaker.accepts_requests(now_s)
    breaker.succeed()
    assert breaker.state(now_s) == "closed" and not breaker.cause


def test_an_answered_probe_counts_before_its_time_where_the_endpoint_was_down() -> None:
    breaker = Breaker()
    breaker.fail(0, "hung", hung=True)
    breaker.recover(1)
    assert breaker.state(1) == "open", "it answered probes all the time"
    breaker.note_down()
    breaker.recover(2)
    assert breaker.state(2) == "closed"
    breaker.fail(3, "cut")
    breaker.recover(4)
    assert breaker.state(4) == "open", "it has been down once, not again"


def test_requests_that_a_dead_node_had_not_answered_are_one_failure_while_another_answers() -> None:
    breaker = Breaker()
    breaker.hear(1.0)
    for number in range(20):
        breaker.fail(1 + number / 100, "cut", since_s=0.5)
    assert breaker.state(2) == "closed"
    for number in range(1, MAX_FAILURES):
        assert breaker.state(3) == "closed", number
        breaker.fail(3, "cut", since_s=2.0)
    assert breaker.state(3) == "open", "nothing answered since those began"
    breaker.begin()
    breaker.hear(3 + OPEN_S)
    breaker.fail(3 + OPEN_S, "cut", since_s=0.0)
    assert breaker.state(3 + OPEN_S) == "open", "the trial counts"


def test_answers_that_are_cut_at_one_time_are_one_failure() -> None:
    breaker = Breaker()
    for number in range(20):
        breaker.fail(number / 100, "cut", had_begun=True)
    assert breaker.state(1) == "closed"
    for second in range(1, MAX_FAILURES):
        breaker.fail(2.0 * second, "cut", had_begun=True)
    assert breaker.state(10) == "open"
    breaker.finish()
    assert breaker.state(10) == "closed", "an answer that went on has ended well"


def test_a_hang_beside_an_answer_that_goes_on_is_one_failure() -> None:
    breaker = Breaker()
    breaker.hear(3)
    breaker.fail(5, "hung", hung=True, since_s=2)
    assert breaker.state(5) == "closed"
    breaker.fail(9, "hung", hung=True, since_s=4)
    assert breaker.state(9) == "open"
    breaker.finish()
    assert breaker.state(9) == "open", "what ended well may have begun before"


def test_an_answer_that_is_cut_ends_no_trial() -> None:
    breaker = Breaker()
    breaker.fail(0, "hung", hung=True)
    breaker.begin()
    breaker.fail(OPEN_S, "cut", had_begun=True)
    assert breaker.state(OPEN_S) == "half_open" and not breaker.accepts_requests(OPEN_S)


def test_a_pause_is_no_longer_than_can_be_meant() -> None:
    pause = Pause(lambda: 1.0)
    pause.refuse(0, 10_000)
    assert pause.seconds_left(0) == 120
    pause.refuse(1, 1)
    assert pause.seconds_left(1) == 119, "a shorter word does not shorten it"
    pause.clear()
    pause.refuse(200, None)
    assert pause.seconds_left(200) == 0.5


def test_what_is_refused_at_once_is_one_refusal() -> None:
    pause = Pause(lambda: 1.0)
    now_s = 0.0
    for most_s in (0.5, 1, 2, 4, 8, 8):
        for _ in range(20):
            pause.refuse(now_s, None)
        assert pause.seconds_left(now_s) == most_s
        now_s += most_s


def test_a_last_resort_may_be_tried_once_a_second() -> None:
    breaker = Breaker()
    for _ in range(MAX_FAILURES):
        breaker.fail(0, "refused")
    assert not breaker.accepts_last_resort(0.9) and breaker.accepts_last_resort(1) and not breaker.accepts_requests(1)
    breaker.begin()
    assert not breaker.accepts_last_resort(2), "one at a time"
    breaker.fail(2, "refused")
    assert not breaker.accepts_last_resort(2.9) and breaker.accepts_last_resort(3)
    assert breaker.seconds_left(2) == OPEN_S - 2, "it costs other requests nothing"
    breaker.begin()
    breaker.succeed()
    assert breaker.accepts_requests(3)
    breaker.fail(4, "hung", hung=True)
    assert not breaker.accepts_last_resort(9), "this one would cost a limit of time"


def test_second_tries_are_saved_up_to_a_limit() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.earn()
    assert sum(budget.take() for _ in range(100)) == 10


def test_pseudonyms() -> None:
    names = Pseudonyms("gpu", b"secret")
    chat = ChatPrompt((Message("system", "Be brief."), Message("user", "One")))
    request = GenerateRequest("r", "m", chat, cache=CachePolicy(partition="ada", lane="lane-7"))
    name = names.session(request, 0)
    assert name == names.session(replace(request, id="other"), 86_399)
    others = {
        names.session(request, 86_400),
        names.session(replace(request, cache=CachePolicy(partition="bob", lane="lane-7")), 0),
        names.session(replace(request, cache=CachePolicy(partition="ada", lane="lane-8")), 0),
        names.session(replace(request, cache=CachePolicy(partition="ada")), 0),
        Pseudonyms("other", b"secret").session(request, 0),
        Pseudonyms("gpu").session(request, 0),
    }
    assert len(others | {name}) == 7
    assert not {"ada", "lane"} & {name}
    assert names.cache_salt(request) != names.cache_salt(replace(request, cache=CachePolicy(partition="bob")))


def test_a_conversation_has_one_name_from_its_first_turn_on_and_every_request_has_one() -> None:
    names = Pseudonyms("gpu", b"secret")
    system, first, other = Message("system", "Be brief."), Message("user", "One"), Message("user", "Two")
    later = (Message("assistant", "1"), other)

    def name(*messages: Message) -> str:
        return names.session(GenerateRequest("r", "m", ChatPrompt(messages)), 0)

    assert name(first) == name(first, *later)
    assert name(system, first) == name(system, first, *later)
    assert len({name(first), name(other), name(system, first)}) == 3
    text = [names.session(GenerateRequest(request, "m", TextPrompt("Once")), 0) for request in ("r1", "r2")]
    assert text[0] and text[1] and text[0] != text[1]


def test_a_prompt_s_reasoning_and_calls_count_too() -> None:
    said = Message("assistant", "x" * 40, "y" * 400, (ToolCall("1", "f", "z" * 4000),))
    request = GenerateRequest("a", "m", ChatPrompt((said,)))
    assert num_prompt_tokens(request) == num_prompt_tokens(replace(request, prompt=TextPrompt("x" * 4440)))
