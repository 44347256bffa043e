"""Constants that a reader should know about: at the edge of what they may be, or resting on few rows.

python -m benchmarks.accuracy_constants
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.fits.fit import FEW, Fit, all_fits, constants_in
from flint.tools.measure.calibration.fitted import at_bounds


@dataclass(frozen=True)
class Doubtful:
    """A constant of presets, and what is to be known of it."""

    constant: str
    table: str
    presets: tuple[str, ...]
    why: str


def doubtful(fits: Sequence[Fit]) -> list[Doubtful]:
    """The constants of all fits that are at a bound or rest on few rows, by name."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for fit in fits:
        for constant, why in _of(fit):
            found.setdefault((constant, fit.table, why), []).append(fit.preset)
    return [Doubtful(c, t, tuple(sorted(p)), w) for (c, t, w), p in sorted(found.items())]


def _of(fit: Fit) -> Iterator[tuple[str, str]]:
    there = constants_in(fit.path, fit.table)
    fitted = {n: there[n] for n in fit.names if n in there and there[n]["kind"] == "fitted"}
    values = {n: float(q["value"]) for n, q in fitted.items() if n in fit.bounds}
    for name in at_bounds(values, fit.bounds):
        low, high, _ = fit.bounds[name]
        yield name, f"at its bound, {values[name]:g} of {low:g} to {high:g}"
    if fit.rows < FEW:
        for name in fitted:
            yield name, f"rests on {fit.rows} rows" if fit.rows != 1 else "rests on one row"


def as_markdown(rows: Sequence[Doubtful]) -> str:
    """The constants as a table for the page."""
    lines = ["| constant | table | presets | what |", "|---|---|---|---|"]
    lines += [f"| `{r.constant}` | {r.table} | {', '.join(r.presets)} | {r.why} |" for r in rows]
    return "\n".join(lines) if rows else "None."


if __name__ == "__main__":
    print(as_markdown(doubtful(all_fits())))
