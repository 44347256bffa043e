"""Calibration: what was fitted, as text, JSON, and the cluster file of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from typing_extensions import TypedDict

from flint.backends.cost.chips.kernels import keys_of
from flint.cluster.kernel_times import MOST_SHAPES, Key, as_csv
from flint.cluster.load import preset_aliases, preset_names
from flint.cluster.models import Cluster, Quantity
from flint.cluster.stack import Stack
from flint.errors import FlintError
from flint.io.documents import as_object
from flint.io.outputs import OutputKind, refuse_to_replace, write_output
from flint.text import format_duration, headings, plural, text_table
from flint.tools.measure.calibration.data import CalibrationFile
from flint.tools.measure.calibration.fitted import FEW, Changed, Error, Fitted
from flint.tools.measure.fitting.kernels import CLASSES, MeasuredKernels

SCHEMA: Final = "flint.calibration/1"


class FittedDocument(TypedDict):
    """One class of kernels, or one tier of the network."""

    name: str  #: The class (products, attention ...), or the tier's name.
    rows: int  #: Different kernels or collectives.
    fitted_on: int  #: Those that constants were fitted on.
    held_out: int  #: Those that errors are of.
    measured_ns: float  #: Their time in all.
    before: Error | None
    """With the base's constants, on the rows held out; null without any."""
    after: Error | None  #: With the fitted ones; null where nothing was fitted.
    one_constant: Error | None
    """Of a roofline times one constant, fitted on the same rows."""
    is_written: bool  #: Whether the fitted constants are better and go into the file.
    reason: str  #: Why not; empty if they do.
    constants: tuple[Changed, ...]  #: The constants that were fitted.
    kept: dict[str, str]  #: Constants that stay as the base has them, and why.


class CalibrationDocument(TypedDict):
    """Constants of a cluster from measurements."""

    schema: Literal["flint.calibration/1"]  #: Kind and version of this document.
    base: str  #: The cluster whose constants were fitted.
    sources: tuple[CalibrationFile, ...]  #: What was read.
    kernels: list[FittedDocument]  #: Classes of kernels.
    tiers: list[FittedDocument]  #: Tiers of the network.
    left_out: dict[str, int]  #: Collectives that the cluster has no place for, by reason.
    host_launch_ns: float | None  #: Mean time of a launch on the host, from traces.
    files: list[str]  #: What was written, as it was named.


@dataclass(frozen=True)
class Calibration:
    """What was read and found. `base` is the cluster as it was.

    `kernels` are classes of kernels, `tiers` tiers of the network by their index. `host_launch_ns` is
    None where no trace says how long the host takes for a launch.
    """

    base: Cluster
    base_name: str
    sources: tuple[CalibrationFile, ...]
    kernels: tuple[Fitted, ...]
    tiers: tuple[tuple[int, Fitted], ...]
    measured: MeasuredKernels
    stack: Stack | None
    host_launch_ns: float | None
    left_out: dict[str, int]
    members: dict[int, int] = field(default_factory=dict)

    @property
    def constants(self) -> dict[str, float]:
        """Fitted constants of the chip that are better than the base's."""
        return {c.name: c.after for k in self.kernels if k.is_better for c in k.changes}

    @property
    def is_changed(self) -> bool:
        """Whether anything is to be written."""
        better = [f for f in self.kernels if f.is_better]
        return bool(better or self.host_launch_ns or any(f.is_better for _, f in self.tiers))

    def write(
        self, path: str | os.PathLike[str], *, residuals: bool = False, force: bool = False
    ) -> list[Path]:
        """Write the cluster file; with `residuals` the times of exact shapes, too, beside it.

        Raises FlintError FL508 for a file that is there already, without `force`, FL849 where nothing is to be written.
        """
        return _write(self, Path(path), residuals=residuals, force=force)

    def to_json(self, files: Sequence[str] = ()) -> dict[str, Any]:
        """Exact numbers, JSON-able."""
        document: CalibrationDocument = {
            "schema": SCHEMA,
            "base": self.base_name,
            "sources": self.sources,
            "kernels": [_document(f) for f in self.kernels],
            "tiers": [_document(f) for _, f in self.tiers],
            "left_out": dict(self.left_out),
            "host_launch_ns": self.host_launch_ns,
            "files": list(files),
        }
        return as_object(document)

    def __str__(self) -> str:
        return as_text(self)

    def lent(self, fitted: Fitted) -> dict[str, Quantity]:
        """Constants of a class that were not fitted, and that the base has for the stack's libraries.

        Fitted ones take the place of a whole class in libraries: these are kept with them.
        """
        family, prefixes = self.base.chip.family, CLASSES[fitted.name][1]
        found: dict[str, Quantity] = {}
        for library in self.stack.libraries if self.stack else ():
            found |= getattr(family, "libraries", {}).get(library, {})
        mine = {c.name for c in fitted.changes}
        return {n: q for n, q in found.items() if n.startswith(prefixes) and n not in mine}


def _document(f: Fitted) -> FittedDocument:
    return {
        "name": f.name,
        "rows": f.rows,
        "fitted_on": f.fitted_on,
        "held_out": f.held_out,
        "measured_ns": round(f.measured_ns, 3),
        "before": f.before,
        "after": f.after,
        "one_constant": f.one_constant,
        "is_written": f.is_better,
        "reason": f.reason,
        "constants": f.changes,
        "kept": dict(f.kept),
    }


_COLUMNS = headings(
    "what | >rows | >fitted on | >held out | >time | >before | >after | >of the sum | >one constant | "
)
#: Errors above this say nothing more.
_MOST = 999.0


def as_text(found: Calibration, *, verbose: bool = False, checked: bool = False) -> str:
    """What was read, the error before and after on the rows held out, and each constant."""
    parts = ["\n".join(_read(s) for s in found.sources)]
    parts += [f"left out   {n:,} collectives {why}" for why, n in sorted(found.left_out.items())]
    results = [*found.kernels, *(f for _, f in found.tiers)]
    parts.append(text_table(_COLUMNS, [_row(f, checked=checked) for f in results]))
    if checked:
        parts.append("Errors in percent on all rows: the mean of each, and of the sum.")
        return "\n\n".join(parts)
    parts.append(
        "Errors in percent on held-out rows: the mean of each row before and after, and of the "
        "sum of\n"
        "times with the constants that are kept; one constant: a roofline times one. With "
        "fewer than 8\n"
        "rows each is held out in turn."
    )
    parts += ["\n".join(_constants(f, verbose=verbose)) for f in results if f.changes or verbose]
    if found.host_launch_ns is not None:
        parts.append(f"host_launch_ns: {found.host_launch_ns:g}, the mean of the traces' launches")
    return "\n\n".join(part for part in parts if part)


def _read(source: CalibrationFile) -> str:
    rows = source.kernels + source.collectives
    line = f"read       {source.name}: {source.format}, {plural(rows, 'row')}"
    left = ", ".join(f"{n:,} {why}" for why, n in source.left_out.items())
    line += f"; left out: {left}" if left else ""
    if source.unknown_share >= 0.001:
        line += f"; of {source.unknown_share:.1%} of its kernels' time only the time is known"
    return line + "".join(f"\n           {note}" for note in source.notes)


def _row(f: Fitted, *, checked: bool) -> tuple[str, ...]:
    last = f.after if f.is_better else f.before
    return (
        f.name,
        f"{f.rows:,}",
        "-" if checked else f"{f.fitted_on:,}",
        "-" if checked else f"{f.held_out:,}",
        format_duration(f.measured_ns),
        _mean(f.before),
        _mean(f.after),
        f"{_capped(last.of_sum_percent):+.1f}" if last else "-",
        _mean(f.one_constant),
        "" if checked else _verdict(f),
    )


def _verdict(f: Fitted) -> str:
    if not f.is_better:
        return f"kept: {f.reason}"
    trivial = (
        f.after is not None
        and f.one_constant
        and f.one_constant.mean_percent < f.after.mean_percent
    )
    return "written, but a roofline times one constant is better" if trivial else "written"


def _mean(error: Error | None) -> str:
    return "-" if error is None else f"{_capped(error.mean_percent):.1f}"


def _capped(value: float) -> float:
    return max(-_MOST, min(_MOST, value))


def _constants(f: Fitted, *, verbose: bool) -> Iterator[str]:
    yield f"{f.name}: {'written' if f.is_better else 'not written, ' + f.reason}"
    for c in f.changes:
        edge = ", at its bound" if c.is_at_bound else ""
        yield f"  {c.name}: {c.before:.4g} -> {c.after:.4g}{edge}"
    if verbose:
        for name, why in f.kept.items():
            yield f"  {name}: kept, {why}"


#: Names of files that a source lists.
_LISTED = 4


def _write(
    found: Calibration, path: Path, *, residuals: bool = False, force: bool = False
) -> list[Path]:
    """Write the cluster file, and beside it the times of exact shapes where `residuals` is asked.

    The same calibration gives the same bytes. Raises FlintError FL508 for a file that is there already,
    without `force`, FL849 where nothing is to be written.
    """
    table = path.with_suffix(".kernels.csv")
    refuse_to_replace(path, OutputKind.CLUSTER, force=force)
    if residuals:
        refuse_to_replace(table, OutputKind.KERNEL_TIMES, force=force)
    times = residual_times(found) if residuals else []
    if not found.is_changed and not times:
        raise FlintError(
            "FL849",
            "nothing to write: no fitted constant is better than the base's",
            help="the table gives the reason for each; --residuals still keeps times of exact shapes",
        )
    text = as_toml(found, path, table.name if times else "")
    written = [path]
    if times:
        write_output(table, as_csv(times).encode(), OutputKind.KERNEL_TIMES, force=force)
        written.append(table)
    write_output(path, text.encode(), OutputKind.CLUSTER, force=force)
    Cluster.load(path)  # what was written can be read: a mistake here is Flint's
    return written


def residual_times(found: Calibration) -> list[tuple[Key, float]]:
    """Mean times of exact shapes, those that take most time in all first."""
    measured = found.measured
    if not len(measured):
        return []
    order = np.argsort(-(measured.measured_ns * measured.count), kind="stable")[:MOST_SHAPES]
    keys = keys_of(measured.kernels)
    times: dict[Key, float] = {}
    for at in order.tolist():
        times.setdefault(keys[at], float(measured.measured_ns[at]))
    return list(times.items())


def as_toml(found: Calibration, path: Path, table: str = "") -> str:
    """The text of the file at `path`; `table` names the file of exact shapes, "" for none."""
    lines = [*_head(found, path), *_derate(found, table), *_chip(found, table)]
    for tier, fitted in found.tiers:
        if fitted.is_better:
            lines += _tier(found, tier, fitted)
    return "\n".join(lines) + "\n"


def _head(found: Calibration, path: Path) -> Iterator[str]:
    stem = re.sub(r"[^\w.-]+", "-", path.stem) or "calibrated"
    yield f"name = {_text(stem)}"
    yield f"title = {_text(f'{found.base.title}, calibrated')}"
    yield f"base = {_text(_base(found, path))}"
    yield f"notes = {_text('Fitted by flint calibrate to ' + names_of(found) + '.')}"
    if found.host_launch_ns is not None:
        source = f"flint calibrate on launches in {names_of(found)}: their mean"
        yield f"host_launch_ns = {_number(found.host_launch_ns, source, 'measured')}"


def _derate(found: Calibration, table: str) -> Iterator[str]:
    """Prices that were fitted to times are these times: the base's derate would make them longer."""
    derate = found.base.derate.value
    if derate != 1 and (table or found.constants):
        source = f"prices of kernels are fitted to measured times, not to {derate:g} of the speed"
        yield f"derate = {_number(1.0, source, 'assumed')}"


def _base(found: Calibration, path: Path) -> str:
    name = found.base_name
    known = [n for preset in preset_names() for n in (preset, *preset_aliases(preset))]
    if name in known:
        return name
    return Path(os.path.relpath(name, path.parent)).as_posix()


def _chip(found: Calibration, table: str) -> Iterator[str]:
    if table:
        yield from ("", "[chip]", f"measured_kernels = {_text(table)}")
    better = [f for f in found.kernels if f.is_better]
    family = found.base.chip.family
    if better and family is not None:
        yield from ("", f"[chip.{family.table}.constants]")
        for fitted in better:
            yield from _toml_constants(found, fitted, f"rows of {fitted.name}")
            yield from _lent(found, fitted)


def _lent(found: Calibration, fitted: Fitted) -> Iterator[str]:
    for name, quantity in sorted(found.lent(fitted).items()):
        source = f"as {found.base.name}: {quantity.source}"
        yield f"{_text(name)} = {_number(quantity.value, source, 'assumed')}"


def _tier(found: Calibration, tier: int, fitted: Fitted) -> Iterator[str]:
    network = found.base.network[tier]
    yield from ("", "[[network]]", f"name = {_text(network.name)}")
    members = found.members.get(tier, 0)
    if members > network.measured_members:
        yield f"measured_members = {members}"
    yield from ("", "[network.constants]")
    yield from _toml_constants(found, fitted, "collectives")


def _toml_constants(found: Calibration, fitted: Fitted, what: str) -> Iterator[str]:
    count = fitted.rows if fitted.rows < FEW else fitted.fitted_on
    source = f"flint calibrate on {count} of {fitted.rows} {what} in {names_of(found)}"
    for change in sorted(fitted.changes, key=lambda c: c.name):
        edge = ", at its bound" if change.is_at_bound else ""
        key = change.name if re.fullmatch(r"[\w-]+", change.name) else _text(change.name)
        yield f"{key} = {_number(change.after, source + edge)}"


def names_of(found: Calibration) -> str:
    """The files, without folders; of many the first."""
    names = sorted({s.name for s in found.sources})
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _number(value: float, source: str, kind: str = "fitted") -> str:
    return (
        f"{{ value = {float(f'{value:.6g}')!r}, kind = {_text(kind)}, source = {_text(source)} }}"
    )


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
