"""The cluster file of a calibration: its base, and the constants that are better, with their sources."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.cost.chips.kernels import keys_of
from flint.cluster.kernel_times import MOST_SHAPES, Key, as_csv
from flint.cluster.load import preset_aliases, preset_names
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.io.outputs import OutputKind, refuse_to_replace, write_output
from flint.tools.measure.calibration.fitted import FEW

if TYPE_CHECKING:
    from flint.tools.measure.calibration.calibrate import Calibration
    from flint.tools.measure.calibration.fitted import Fitted

#: Names of files that a source lists.
_LISTED = 4


def write(
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
            "there is nothing to write: no constant was fitted that is better than the base's",
            help="the table says why of each; --residuals keeps times of exact shapes all the same",
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
            yield from _constants(found, fitted, f"rows of {fitted.name}")
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
    yield from _constants(found, fitted, "collectives")


def _constants(found: Calibration, fitted: Fitted, what: str) -> Iterator[str]:
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
