"""Sizes in the form that people write."""

from __future__ import annotations

import pytest

from edgeagent.units import memory_bytes, memory_text, size_text


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("8G", 8 << 30), ("8GiB", 8 << 30), ("8 gb", 8 << 30), ("512M", 512 << 20), ("1.5K", 1536), ("7", 7)],
)
def test_sizes_of_memory_are_powers_of_two(text: str, num_bytes: int) -> None:
    assert memory_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "G", "8X", "-1G", "1e9", "8GG", "9" * 400])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        memory_bytes(text)


def test_sizes_in_words() -> None:
    assert [memory_text(size) for size in (8 << 30, 1536 << 10, 2048, 7)] == ["8.0 GiB", "1.5 MiB", "2.0 KiB", "7 B"]
    assert [size_text(size) for size in (8e9, 1.5e6, 2000, 7)] == ["8.0 GB", "1.5 MB", "2.0 kB", "7 B"]
