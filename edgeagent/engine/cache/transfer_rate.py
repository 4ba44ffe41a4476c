"""Measures the speed of transfers between cells and blocks."""

from __future__ import annotations

_WEIGHT = 0.2  # of a new measurement


class TransferRate:
    """Predicts how many seconds a transfer takes. The prediction is 0 before the first measurement."""

    def __init__(self) -> None:
        self._seconds_per_byte = 0.0

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Add a measurement: a transfer of `num_bytes` took `seconds`."""
        weight = _WEIGHT if self._seconds_per_byte else 1.0
        self._seconds_per_byte += weight * (seconds / max(1, num_bytes) - self._seconds_per_byte)

    def seconds(self, num_bytes: float) -> float:
        """Return the expected seconds to transfer this many bytes."""
        return self._seconds_per_byte * num_bytes
