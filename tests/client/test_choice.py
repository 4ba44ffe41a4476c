"""What the client makes of the daemon's answer to a choice."""

from edgeagent.client.choice import Chance, choice_of


def test_a_field_of_a_later_daemon_is_no_error() -> None:
    chances = [{"id": "a", "text": "yes", "probability": 1.0, "logprob": -1.5, "rank": 1}]
    found = choice_of({"choice": "a", "probabilities": chances, "usage": {}})
    assert (found.id, found.chances) == ("a", (Chance("a", "yes", 1.0, -1.5),))
    assert found.body["probabilities"][0]["rank"] == 1
