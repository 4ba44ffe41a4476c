"""The choice among endpoints, the measurements that it uses, and the names under which requests are sent."""

from __future__ import annotations

from edgeagent.backends.prompts import num_prompt_tokens
from edgeagent.backends.remote.cluster import Cluster, Pseudonyms
from edgeagent.backends.remote.endpoint import Endpoint
from edgeagent.remotes import EndpointConfig, Remote
from edgeagent.types import CachePolicy, ChatPrompt, GenerateRequest, Message, TextPrompt, ToolCall, replace
from tests.backends.remote.support import Clock, Rows


def made(*endpoints: str | tuple[str, str], clock: Clock | None = None) -> Cluster:
    """Return a cluster with these endpoints, each a name or a name and a region."""
    pairs = [(each, "") if isinstance(each, str) else each for each in endpoints]
    configs = tuple(EndpointConfig(f"http://{name}.example/v1", region) for name, region in pairs)
    return Cluster(Remote("gpu", configs), lambda key: "", Rows(), clock or Clock())


def order(cluster: Cluster, session: str = "", num_prompt_tokens: int = 100) -> list[int]:
    """Return the endpoints to try, as indices."""
    chosen = cluster.order("tiny", num_prompt_tokens, session)
    return list(dict.fromkeys(cluster.endpoints.index(endpoint) for endpoint in chosen))


def answers(cluster: Cluster, *seconds: float) -> None:
    """Let each endpoint answer a short prompt in these seconds."""
    for endpoint, first_s in zip(cluster.endpoints, seconds, strict=True):
        endpoint.note_content(100, first_s, cluster.clock())


def test_the_soonest_first() -> None:
    cluster = made("a", "b", "c")
    answers(cluster, 1.9, 2.9, 0.9)
    assert order(cluster) == [2, 0, 1]
    cluster.endpoints[2].num_waiting = 20
    assert order(cluster) == [0, 1, 2]


def test_the_first_region_is_home_until_another_is_half_a_second_faster() -> None:
    cluster = made(("a", "eu"), ("b", "us"))
    answers(cluster, 0.5, 0.4)
    homes = {order(cluster, session)[0] for session in map(str, range(20))}
    assert homes == {0}
    cluster = made(("a", "eu"), ("b", "us"))
    answers(cluster, 5.0, 0.3)
    assert order(cluster) == [1, 0]


def test_a_conversation_keeps_its_endpoint() -> None:
    cluster = made(*"abcd")
    homes = {session: order(cluster, session)[0] for session in map(str, range(400))}
    counts = [list(homes.values()).count(index) for index in range(4)]
    assert min(counts) > 60, "conversations are spread"
    lost = cluster.endpoints[3]
    lost.breaker.pause(cluster.clock(), 60)
    for session, home in homes.items():
        assert home == 3 or order(cluster, session)[0] == home, "only those of the lost one move"
    answers(cluster, *(3.0 if index == homes["0"] else 0.2 for index in range(4)))
    assert order(cluster, "0")[0] != homes["0"]


def test_averages() -> None:
    clock = Clock()
    (endpoint,) = made("a", clock=clock).endpoints
    began_s = clock()

    def first_token_s(num_prompt_tokens: int, after_s: float) -> float | None:
        return endpoint.first_token_s(num_prompt_tokens, began_s + after_s)

    assert first_token_s(10, 0) is None and endpoint.token_s(began_s) is None
    endpoint.round_trip_s = 0.1
    assert first_token_s(10, 0) is not None
    endpoint.note_content(2000, 1.0, began_s)
    endpoint.note_content(2000, 2.0, began_s + 1)
    assert first_token_s(2000, 1) == 1.2
    assert first_token_s(10, 1) == first_token_s(50_000, 1) == 1.2, "the most similar prompts count"
    endpoint.note_content(10, 0.5, began_s + 1)
    assert first_token_s(10, 1) == 0.5 and first_token_s(2000, 1) == 1.2
    endpoint.note_tokens(10, 1.0, began_s + 1)
    endpoint.note_tokens(0, 1.0, began_s + 1)
    assert endpoint.token_s(began_s + 1) == 0.1
    endpoint.round_trip_s = None
    assert first_token_s(2000, 302) is None, "what is old is forgotten"
    endpoint.note_content(2000, 9.0, began_s + 400)
    assert first_token_s(2000, 400) == 9.0


def test_what_does_not_fit_goes_elsewhere() -> None:
    cluster = made("a", "b")
    short: Endpoint = cluster.endpoints[0]
    short.note_context("tiny", 1000)
    assert order(cluster, num_prompt_tokens=2000) == [1]
    assert cluster.fits("tiny", 2000)


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
