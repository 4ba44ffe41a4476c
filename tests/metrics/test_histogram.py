"""The fast histogram gives the same values as the library's."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from edgeagent.metrics import FastHistogram

BOUNDS = (0.001, 0.01, 0.5, 2.5)


def test_it_exports_what_the_library_s_histogram_would() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = FastHistogram("edgeagent_x_seconds", "Said.", ("model", "tier"), bounds=BOUNDS, registry=ours)
    histogram = Histogram("edgeagent_x_seconds", "Said.", ["model", "tier"], buckets=BOUNDS, registry=theirs)
    values = random.Random(0)
    for model in ("a", "b"):
        series = fast.labels(model, "batch")
        for value in (*BOUNDS, 0.0, -1.0, 99.0, *(values.expovariate(2.0) for _ in range(100))):
            series.observe(value)
            histogram.labels(model, "batch").observe(value)
    assert generate_latest(ours) == generate_latest(theirs)


def test_without_a_label() -> None:
    registry = CollectorRegistry()
    FastHistogram("edgeagent_y_seconds", "Said.", bounds=BOUNDS, registry=registry).labels().observe(0.2)
    assert registry.get_sample_value("edgeagent_y_seconds_count") == 1.0
    assert registry.get_sample_value("edgeagent_y_seconds_bucket", {"le": "0.01"}) == 0.0
    assert registry.get_sample_value("edgeagent_y_seconds_bucket", {"le": "0.5"}) == 1.0
