"""Requests that schemathesis generates from the OpenAPI document, to every route: each answer is as described.

The tests import schemathesis, which takes half a second: each of pytest's processes collects this module, and one of
them runs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from edgeagent.api.app import create_app
from edgeagent.config import Config, StoreConfig
from edgeagent.errors import ModelNotFound
from edgeagent.store.hub import pull
from edgeagent.types import WorkerState
from tests.api.services import INFO, OneModel
from tests.examples import examples
from tests.owner_key import OwnerKey
from tests.rotation import examples_seed

if TYPE_CHECKING:
    import schemathesis

# For each of 160 pairs of a route and a kind of request.
EXAMPLES = examples(18, fewest=2)
DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
OPERATIONS = {
    f"{method.upper()} {path}": (path, method) for path, methods in DOCUMENT["paths"].items() for method in methods
}


class NoPuller:
    """A hub without any repository."""

    def __init__(self, *_: object) -> None: ...

    def pull(self, name: str, _: object) -> None:
        raise ModelNotFound(f"there is no {name[:64]!r}")

    pull_with_draft = pull


def all_checks() -> list[Callable[..., Any]]:
    import schemathesis
    from schemathesis.specs.openapi import checks

    return [
        schemathesis.checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
        checks.negative_data_rejection,
        checks.missing_required_header,
        checks.unsupported_method,
        checks.ignored_auth,
    ]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    import schemathesis

    folder: Path = tmp_path_factory.mktemp("state")
    config = Config(state_dir=folder, store=StoreConfig(models_dir=folder / "models"))
    app = create_app(config, OneModel(WorkerState.READY, info=INFO), keys=OwnerKey("x" * 43))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pull, "Puller", NoPuller)
        loaded = schemathesis.openapi.from_dict(DOCUMENT)
        loaded.app = app
        yield loaded


@pytest.mark.parametrize("kind", ["valid", "invalid"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_answers_are_as_described(schema: schemathesis.BaseSchema, name: str, kind: str) -> None:
    from schemathesis import GenerationMode

    mode = GenerationMode.POSITIVE if kind == "valid" else GenerationMode.NEGATIVE
    path, method = OPERATIONS[name]
    operation = schema[path][method]
    described = DOCUMENT["paths"][path][method]
    if mode is GenerationMode.NEGATIVE and "requestBody" not in described:
        return  # there is nothing to send that could be invalid
    # Routes that Ollama has and edgeagent lacks answer with 501.
    is_missing = "501" in described["responses"]
    checks = all_checks()[is_missing:]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,  # except in the day's share
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url="http://127.0.0.1", checks=checks)

    number = examples_seed(f"{__name__} {name} {mode}")
    (check if number is None else seed(number)(check))()
