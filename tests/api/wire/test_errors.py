"""Every error has a wire shape, with the headers and bodies that openai clients act on."""

from __future__ import annotations

import pytest

from edgeagent import errors
from edgeagent.api.wire.errors import WIRE_FORMS, error_body, error_headers, http_status, wire_form
from edgeagent.errors import EdgeAgentError


def _classes(cls: type[EdgeAgentError] = EdgeAgentError) -> list[type[EdgeAgentError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _classes(child))]


def test_the_table_names_every_error_and_nothing_else() -> None:
    ours = {cls for cls in _classes() if cls.__module__ == errors.__name__}
    assert set(WIRE_FORMS) == ours


@pytest.mark.parametrize("cls", list(WIRE_FORMS))
def test_body_has_exactly_the_four_keys(cls: type[EdgeAgentError]) -> None:
    body = error_body(cls("what happened", param="field"))
    assert list(body) == ["message", "type", "param", "code"]
    assert body["param"] == "field"
    assert body["code"] == cls.code


@pytest.mark.parametrize("cls", list(WIRE_FORMS))
def test_client_mistakes_are_4xx_and_ours_5xx(cls: type[EdgeAgentError]) -> None:
    clients = (
        errors.InvalidRequest,
        errors.NotFound,
        errors.Unauthorized,
        errors.Forbidden,
        errors.Overloaded,
        # Not the client's mistake, but with a 5xx status the client would retry.
        errors.ModelDamaged,
    )
    assert http_status(cls("x")) // 100 == (4 if issubclass(cls, clients) else 5)


def test_a_subclass_without_a_row_takes_its_ancestor() -> None:
    class Late(errors.ModelNotFound):
        code = "late"

    assert wire_form(Late("x")) == WIRE_FORMS[errors.ModelNotFound]


def test_internal_messages_stay_inside() -> None:
    for cls in (EdgeAgentError, errors.InternalError):
        assert "secret" not in str(error_body(cls("secret path")))
    assert error_body(errors.WorkerCrashed("signal 9"))["message"] == "signal 9"


def test_retry_headers() -> None:
    assert error_headers(errors.Overloaded("full", retry_after_s=0.25)) == {
        "retry-after": "1",
        "retry-after-ms": "250",
    }
    assert error_headers(errors.Overloaded("full"))["retry-after"] == "1"
    assert error_headers(errors.ModelLoading("loading", retry_after_s=900))["retry-after"] == "120"
    assert error_headers(errors.InvalidRequest("no")) == {}
    assert error_headers(errors.Unauthorized("who"))["www-authenticate"] == "Bearer"
    assert error_headers(errors.ModelLoadFailed("bad"))["x-should-retry"] == "false"


@pytest.mark.parametrize("cls", list(WIRE_FORMS))
def test_whatever_may_pass_says_when_to_try_again(cls: type[EdgeAgentError]) -> None:
    headers = error_headers(cls("x"))
    assert ("retry-after" in headers) is (http_status(cls("x")) in (429, 503))
    assert ("retry-after" in headers) is WIRE_FORMS[cls].may_pass
    # No client is told to retry what cannot succeed, or to wait for a retry that it must not make.
    assert not ("retry-after" in headers and headers.get("x-should-retry") == "false")
