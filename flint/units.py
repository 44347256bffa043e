"""Quantities for people: `1.50 GiB`, `59.3 TFLOP`. Exact numbers are for `--json` and files."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")


def format_bytes(count: int) -> str:
    """Bytes with a binary unit (1 KiB = 1024 B) and three significant digits."""
    return _scaled(count, 1024, _BINARY, "")


def format_flops(count: int) -> str:
    """Floating point operations with a decimal unit (1 TFLOP = 10^12)."""
    return _scaled(count, 1000, _DECIMAL, "FLOP")


def format_count(count: int) -> str:
    """A number of things, with a comma at each thousand."""
    return f"{count:,}"


def format_seconds(seconds: float) -> str:
    """A duration: milliseconds below one second, minutes from 100 s."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def format_duration(nanoseconds: float) -> str:
    """An estimated time with a decimal unit and three significant digits: `12.3 ms`."""
    value, units = float(nanoseconds), ["ns", "us", "ms", "s"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {units[0]}"


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


def _scaled(count: int, step: int, prefixes: tuple[str, ...], unit: str) -> str:
    value, at = float(count), 0
    while value >= step and at < len(prefixes) - 1:
        value, at = value / step, at + 1
    if at == 0:
        return f"{count:,} {prefixes[0]}{unit}".rstrip()
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {prefixes[at]}{unit}"
