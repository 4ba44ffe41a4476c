"""The learned table of step costs."""

from __future__ import annotations

from edgeagent.engine.cost_model import CostModel


def test_knows_nothing_at_first() -> None:
    costs = CostModel(512)
    assert costs.predict(8, 100) is None
    assert costs.max_tokens_within(1.0, 100, 32) == 32


def test_converges_to_what_is_measured_and_forgets_outliers() -> None:
    costs = CostModel(512)
    for _ in range(50):
        costs.observe(8, 100, 0.010)
    costs.observe(8, 100, 1.0)
    for _ in range(50):
        costs.observe(8, 100, 0.020)
    predicted = costs.predict(8, 100)
    assert predicted is not None
    assert abs(predicted - 0.020) < 0.001


def test_a_size_never_seen_is_scaled_from_the_nearest() -> None:
    costs = CostModel(512)
    costs.observe(32, 100, 0.1)
    assert costs.predict(64, 100) == 0.2
    assert costs.predict(16, 100) == 0.1
    assert costs.predict(32, 4000) == 0.1


def test_the_largest_batch_within_a_time_may_go_one_size_beyond_what_is_known() -> None:
    costs = CostModel(512)
    costs.observe(32, 100, 0.030)
    assert costs.max_tokens_within(0.100, 100, 32) == 64  # 128 would be expected to take 0.12
    costs.observe(64, 100, 0.032)  # a tile: as dear as 32
    assert costs.max_tokens_within(0.100, 100, 32) == 128
    assert costs.max_tokens_within(0.001, 100, 32) == 32


def test_of_sizes_that_contradict_each_other_the_one_measured_later_is_believed() -> None:
    cold, busy = CostModel(512), CostModel(512)
    cold.observe(1, 100, 0.500)
    cold.observe(4, 100, 0.020)
    assert cold.compare([1, 2, 4, 8], 100) == [0.020, 0.020, 0.020, 0.040]
    busy.observe(4, 100, 0.020)
    busy.observe(1, 100, 0.500)
    assert busy.compare([1, 4, 8], 100) == [0.500, 0.500, 0.500]
    assert CostModel(512).compare([1, 2], 100) is None


def test_a_size_that_was_dear_once_is_tried_again() -> None:
    costs = CostModel(512)
    costs.observe(512, 100, 60.0)  # the machine slept
    for _ in range(20):
        costs.observe(256, 100, 0.5)
    assert costs.max_tokens_within(2.0, 100, 32) == 512
    costs.observe(512, 100, 1.0)
    assert costs.predict(512, 100) == 1.0


def test_a_machine_that_became_slow_is_believed_for_all_sizes() -> None:
    costs = CostModel(512)
    for size in (32, 64, 128, 256, 512):
        costs.observe(size, 100, 0.05)
    for _ in range(20):
        costs.observe(64, 100, 3.0)
    assert costs.max_tokens_within(2.0, 100, 32) == 32


def test_an_unknown_size_may_have_more_time_and_grows_by_so_much_at_most() -> None:
    costs = CostModel(2048)
    costs.observe(4, 0, 1.5)
    assert costs.max_tokens_within(2.0, 0, 4) == 4
    assert costs.max_tokens_within(2.0, 0, 4, at_first=4.0) == 8
    quick = CostModel(2048)
    quick.observe(4, 0, 0.001)
    assert quick.max_tokens_within(2.0, 0, 4, max_growth=16) == 64


def test_a_batch_that_is_no_power_of_two_can_be_full() -> None:
    costs = CostModel(100)
    costs.observe(100, 0, 0.1)
    assert costs.max_tokens_within(2.0, 0, 4) == 100


def test_a_size_that_was_never_measured_is_not_guessed_from_larger_batches() -> None:
    costs = CostModel(512)
    costs.observe(512, 0, 1.0)
    assert costs.predict(1, 0) == 1.0 and costs.measured(1, 0) is None
    costs.observe(4, 0, 0.02)
    assert costs.measured(1, 100) == 0.02
    costs.observe(1, 0, 0.01)
    assert costs.measured(1, 0) == 0.01
