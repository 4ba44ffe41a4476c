"""The exported metrics, and that the dashboard and its README use no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgeagent.metrics.exposition import Snapshot, exposition
from edgeagent.types import (
    CacheStatus,
    DraftCounts,
    EndpointStatus,
    ModelStatus,
    RemoteStatus,
    WorkerState,
    WorkerStatus,
)

GRAFANA = Path(__file__).resolve().parents[2] / "packaging" / "grafana"
WORKER = WorkerStatus(
    num_running=2,
    num_cells_used=5,
    num_cells=10,
    num_decodes=9,
    num_graphs_reused=7,
    disk_cache=CacheStatus(num_bytes=5, num_hits=3),
)
MODEL = ModelStatus("m", WorkerState.READY, worker=WORKER, num_restarts=3)
NAME = re.compile(r"\b(?:edgeagent|process)_[a-z_]+")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


def exported() -> set[str]:
    """Return the name of every series that exists or can exist."""
    families = text_string_to_metric_families(exposition(Snapshot([MODEL], 1)).decode())
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


def test_what_is_read_off_the_models() -> None:
    text = exposition(Snapshot([MODEL, ModelStatus("fallen", WorkerState.FAILED)], 7)).decode()
    assert 'edgeagent_model_ready{model="m"} 1.0' in text
    assert 'edgeagent_model_ready{model="fallen"} 0.0' in text
    assert 'edgeagent_worker_restarts_total{model="m"} 3.0' in text
    assert 'edgeagent_kv_cells_used{model="m"} 5.0' in text
    assert 'edgeagent_worker_decodes_total{model="m"} 9.0' in text
    assert 'edgeagent_worker_graphs_reused_total{model="m"} 7.0' in text
    assert 'edgeagent_kv_cells_used{model="fallen"}' not in text
    assert "edgeagent_open_connections 7.0" in text
    assert 'edgeagent_cache_bytes{model="m",tier="disk"} 5.0' in text
    assert 'edgeagent_cache_hits_total{model="m",tier="disk"} 3.0' in text
    assert 'tier="memory"' not in text


def test_what_drafts_have_shown() -> None:
    worker = WorkerStatus(drafts=(DraftCounts("ngram", (7, 1, 2), (3, 2), (2,)),), draft_gain=1.5)
    text = exposition(Snapshot([ModelStatus("m", WorkerState.READY, worker=worker)], 0)).decode()
    assert 'edgeagent_draft_gain{model="m"} 1.5' in text
    assert 'edgeagent_drafts_total{length="2",model="m",source="ngram"} 2.0' in text
    assert 'edgeagent_drafts_total{length="0",model="m",source="ngram"} 7.0' in text
    for position, accepted, count in (("1", "true", 2), ("1", "false", 1), ("2", "true", 0), ("2", "false", 2)):
        labels = f'accepted="{accepted}",model="m",position="{position}",source="ngram"'
        assert f"edgeagent_verified_draft_tokens_total{{{labels}}} {count}.0" in text


def test_how_remotes_stand() -> None:
    endpoints = (EndpointStatus("https://a/v1"), EndpointStatus("https://b/v1", breaker="open"))
    remotes = [
        RemoteStatus("gpu", "", 2, endpoints),
        RemoteStatus("x", "no key"),
        RemoteStatus("y", "", 0, endpoints[1:]),
    ]
    text = exposition(Snapshot([], 0, remotes)).decode()
    assert 'edgeagent_remote_live_requests{remote="gpu"} 2.0' in text
    assert 'edgeagent_remote_usable{remote="gpu"} 1.0' in text
    assert 'edgeagent_remote_usable{remote="x"} 0.0' in text and 'edgeagent_remote_usable{remote="y"} 0.0' in text
    assert 'edgeagent_remote_breaker{endpoint="https://a/v1",remote="gpu"} 0.0' in text
    assert 'edgeagent_remote_breaker{endpoint="https://b/v1",remote="gpu"} 2.0' in text


def test_no_name_comes_twice() -> None:
    names = re.findall(r"^# TYPE (\S+)", exposition(Snapshot([MODEL], 1)).decode(), re.MULTILINE)
    assert len(names) == len(set(names))


def expressions() -> Iterator[str]:
    dashboard = json.loads((GRAFANA / "edgeagent.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["query"]


def test_the_dashboard_asks_only_for_what_there_is() -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    # `process_...` series depend on the system, so this machine may lack them.
    assert {name for name in asked if name.startswith("edgeagent")} <= exported()
    assert asked >= {"edgeagent_requests_total", "edgeagent_live_requests", "edgeagent_kv_cells_used"}


def test_the_dashboard_s_panels_are_apart() -> None:
    dashboard = json.loads((GRAFANA / "edgeagent.json").read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("row", re.findall(r"^\| `(.*?)`", (GRAFANA / "README.md").read_text("utf-8"), re.MULTILINE))
def test_the_readme_s_alerts_ask_only_for_what_there_is(row: str) -> None:
    names = NAME.findall(row)
    assert names
    assert set(names) <= exported()
