"""Quantities for people."""

import pytest

from flint.text import format_bytes, format_count, format_flops, format_seconds, plural


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (10 * 1024**2, "10.0 MiB"),
        (512 * 1024**3, "512 GiB"),
        (2**80, "1048576 EiB"),
    ],
)
def test_bytes(count, text):
    assert format_bytes(count) == text


def test_flops():
    assert format_flops(999) == "999 FLOP"
    assert format_flops(59_303_000_000_000) == "59.3 TFLOP"


def test_seconds():
    found = [format_seconds(s) for s in (0.0123, 2.345, 99.94, 125)]
    assert found == ["12 ms", "2.3 s", "99.9 s", "2 min 5 s"]


def test_counts():
    assert (format_count(12345), plural(1, "rank"), plural(2000, "rank")) == (
        "12,345",
        "1 rank",
        "2,000 ranks",
    )
