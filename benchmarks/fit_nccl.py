"""Fit the constants of the collective model, print them, and write them into the presets.

    python -m benchmarks.fit_nccl            # fit and print
    python -m benchmarks.fit_nccl --write    # and update [network.constants] of flint/clusters

Everything is fitted on one half of the rows (`collective_rows.half_of`); benchmarks/
accuracy_collectives.py reports the other half. With `own_part` given, the model is linear in the
others, so the mean absolute percentage error is brought down by reweighted least squares.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from benchmarks import collective_rows as rows
from benchmarks.kernel_rows import PRESETS
from benchmarks.toml_constants import Constant, set_constants
from flint.backends.cost.collectives.algorithm import LinkUse
from flint.backends.cost.collectives.algorithms.all_to_all import direct_all_to_all
from flint.backends.cost.collectives.algorithms.in_switch import in_switch_all_reduce
from flint.backends.cost.collectives.algorithms.ring import ring
from flint.backends.cost.collectives.algorithms.tree import tree_all_reduce
from flint.cluster.load import PRESETS as CLUSTERS
from flint.cluster.models import Cluster
from flint.ir.program import Collective

#: Bytes from which NCCL reduced floating-point numbers in the switch, on 8 GPUs.
IN_SWITCH_BYTES = 32 << 20
#: Bus bandwidth (B/s) of an all-reduce of 512 MiB in the switch on 8 GPUs, and GPUs from which it
#: is taken, by preset.
IN_SWITCH = {"h100-dgx": (445e9, 5), "h200-dgx": (480e9, 5), "b200-dgx": (703e9, 6)}
#: No link carries more of its bandwidth as payload.
MOST_EFFICIENT = 0.95
#: PCIe: two GPUs reach each other, more share the way through the host.
THROUGH_HOST = ("l40s",)
SOURCE = (
    "benchmarks/fit_nccl.py on half of aiconfigurator's NCCL measurements of {gpu}, {sizes} GPUs"
)
Array = NDArray[np.float64]


def schedule_of(row: rows.Measured) -> LinkUse:
    """What NCCL runs when it does not reduce in the switch."""
    call = row.call
    if call.collective is Collective.ALL_TO_ALL:
        return direct_all_to_all(call.comm_bytes, call.size)
    return ring(call.collective, call.comm_bytes, call.size)


def in_switch(row: rows.Measured, preset: str) -> bool:
    """Whether NCCL reduced in the switch."""
    wide = preset in IN_SWITCH and row.call.size >= IN_SWITCH[preset][1]
    reduces = row.call.collective is Collective.ALL_REDUCE and not row.cannot_reduce_in_switch
    return wide and reduces and row.size_bytes >= IN_SWITCH_BYTES


def solve(design: Array, measured: Array, of: Array | None = None) -> Array:
    """Factors >= 0 of the columns with the least mean absolute error in percent of `of`.

    `of` is what is measured, unless given.
    """
    scale = measured if of is None else of
    relative, target = design / scale[:, None], measured / scale
    weight = np.ones(len(measured))
    for _ in range(80):
        used = np.ones(design.shape[1], dtype=np.bool_)
        while True:
            scaled = relative * weight[:, None]
            factors = np.zeros(design.shape[1])
            factors[used] = np.linalg.lstsq(scaled[:, used], target * weight, rcond=None)[0]
            if (factors >= 0).all():
                break
            used &= factors > 0
        error = np.abs(relative @ factors - target)
        weight = 1 / np.sqrt(np.maximum(error, 0.01))
    return factors


def fit_rings(measured: list[rows.Measured], bandwidth: float, own_part: float) -> dict[str, float]:
    """a0, a1, c and efficiency, from rings and direct all-to-alls."""
    schedules = [schedule_of(r) for r in measured]
    moved = np.array([s.wire_bytes + own_part * s.own_bytes for s in schedules])
    steps = np.array([s.steps for s in schedules])
    columns = [np.ones(len(moved)), steps, moved / bandwidth, np.sqrt(moved) / bandwidth]
    design = np.stack(columns, axis=1)
    a0, a1, per_byte, per_root = solve(design, np.array([r.measured_ns for r in measured]))
    return {
        "a0_ns": float(a0),
        "a1_ns": float(a1),
        "c": float(per_root / per_byte),
        "efficiency": float(1 / per_byte),
        "own_part": own_part,
    }


def ring_error(measured: list[rows.Measured], bandwidth: float, own_part: float) -> float:
    """Mean absolute percentage error of a fit on its own rows."""
    k = fit_rings(measured, bandwidth, own_part)
    errors = []
    for row in measured:
        s = schedule_of(row)
        moved = s.wire_bytes + own_part * s.own_bytes
        transfer = (moved + k["c"] * moved**0.5) / (k["efficiency"] * bandwidth)
        errors.append(abs((k["a0_ns"] + s.steps * k["a1_ns"] + transfer) / row.measured_ns - 1))
    return 100 * float(np.mean(errors))


def fit_in_switch(
    preset: str, measured: list[rows.Measured], bandwidth: float, rings: dict[str, float]
) -> dict[str, float]:
    """Start and efficiency of the reduction in the switch, and the GPUs from which it is taken."""
    speed, members = IN_SWITCH[preset]
    points = [(r.call.comm_bytes, r.call.size, r.measured_ns) for r in measured]
    points.append((512 << 20, 8, (512 << 20) * 2 * 7 / 8 / speed * 1e9))
    schedules = [in_switch_all_reduce(size, n) for size, n, _ in points]
    moved = np.array([s.wire_bytes for s in schedules])
    known = np.array([rings["a0_ns"] + s.steps * rings["a1_ns"] for s in schedules])
    time = np.array([t for _, _, t in points])
    transfer = (moved + rings["c"] * np.sqrt(moved)) / bandwidth
    start, per_byte = solve(np.stack([np.ones(len(moved)), transfer], axis=1), time - known)
    return {
        "nvls_a0_ns": float(start),
        "nvls_efficiency": float(1 / per_byte),
        "nvls_from": float(members),
    }


def fit_host(measured: list[rows.Measured], rings: dict[str, float]) -> dict[str, float]:
    """What the host of a server carries of groups of more than two, from rings and all-to-alls."""
    schedules = [schedule_of(r) for r in measured]
    moved = np.array([s.wire_bytes + rings["own_part"] * s.own_bytes for s in schedules])
    known = np.array([rings["a0_ns"] + s.steps * rings["a1_ns"] for s in schedules])
    members = np.array([r.call.size for r in measured])
    time = np.array([r.measured_ns for r in measured])
    transfer = (moved + rings["c"] * np.sqrt(moved)) * members
    (per_byte,) = solve(transfer[:, None], time - known, of=time)
    return {"host_bytes_per_s": 1e9 / float(per_byte)}


def fit_own_part(halves: dict[str, tuple[list[rows.Measured], float]]) -> float:
    """The part of what a rank keeps that counts as sent: one number for all switched GPUs."""
    tried = [k / 20 for k in range(21)]
    errors = [
        sum(ring_error(half, bw, own) for p, (half, bw) in halves.items() if p not in THROUGH_HOST)
        for own in tried
    ]
    return tried[int(np.argmin(errors))]


def fit_over_nodes(inner: dict[str, Constant]) -> dict[str, float]:
    """Time of a step between nodes, c and efficiency of an adapter, from AWS's two nodes.

    NCCL runs a tree between them. `inner` are the constants of the tier inside a node.
    """
    measured = [r for r in rows.over_nodes() if not r.half]
    inside = [ring(r.call.collective, r.call.comm_bytes, r.call.spans[0].size) for r in measured]
    trees = [
        tree_all_reduce(r.call.comm_bytes / r.call.spans[0].size, r.call.spans[1].size)
        for r in measured
    ]
    known = np.array([inner["a0_ns"][0] + s.steps * inner["a1_ns"][0] for s in inside])
    moved = np.array([s.wire_bytes for s in trees])
    columns = [np.array([s.steps for s in trees]), moved, np.sqrt(moved)]
    bandwidth = rows.EFA_BYTES_PER_S["value"] / 1e9
    time = np.array([r.measured_ns for r in measured]) - known
    _, per_byte, _ = solve(np.stack(columns, axis=1), time)
    efficiency = min(float(1 / per_byte / bandwidth), MOST_EFFICIENT)
    left = time - moved / (efficiency * bandwidth)
    a1, per_root = solve(np.stack([columns[0], columns[2]], axis=1), left, of=time)
    root = float(per_root) * efficiency * bandwidth
    return {"a1_ns": float(a1), "c": root, "efficiency": efficiency}


def fit() -> dict[str, dict[str, Constant]]:
    """Constants of the inner tier of each preset."""
    halves, switched = {}, {}
    for preset, gpu in PRESETS.items():
        bandwidth = Cluster.load(preset).network[0].bandwidth_bytes_per_s.value / 1e9
        most = 2 if preset in THROUGH_HOST else 8
        fitted = [r for r in rows.inside_a_node(gpu) if not r.half and r.call.size <= most]
        switched[preset] = [r for r in fitted if in_switch(r, preset)]
        halves[preset] = [r for r in fitted if not in_switch(r, preset)], bandwidth
    own_part = fit_own_part(halves)
    found = {}
    for preset, (half, bandwidth) in halves.items():
        values = fit_rings(half, bandwidth, own_part)
        if preset in IN_SWITCH:
            values |= fit_in_switch(preset, switched[preset], bandwidth, values)
        sizes = "2" if preset in THROUGH_HOST else "2-8"
        source = SOURCE.format(gpu=Cluster.load(preset).chip.name, sizes=sizes)
        found[preset] = {name: (value, "fitted", source) for name, value in values.items()}
        if preset in THROUGH_HOST:
            wider = [r for r in rows.inside_a_node(PRESETS[preset]) if not r.half]
            host = fit_host([r for r in wider if r.call.size > 2], values)
            source = SOURCE.format(gpu=Cluster.load(preset).chip.name, sizes="4-8")
            found[preset] |= {name: (value, "fitted", source) for name, value in host.items()}
    return found


def assumed(fitted: dict[str, dict[str, Constant]]) -> dict[tuple[str, str], dict[str, Constant]]:
    """Constants of tiers that nothing here measures: (preset, tier) -> constants."""
    found: dict[tuple[str, str], dict[str, Constant]] = {}
    for preset, like in (("a100-40-dgx", "a100-80-dgx"), ("gb200-nvl72", "b200-dgx")):
        source = f"as fitted for {like}"
        found[preset, "nvlink"] = {
            k: (v, "assumed", source) for k, (v, _, _) in fitted[like].items()
        }
    nodes = fit_over_nodes(fitted["a100-80-dgx"])
    source = "benchmarks/fit_nccl.py on half of AWS's all-reduces over EFA on 2 nodes of 8 A100"
    for preset in (*PRESETS, "a100-40-dgx", "gb200-nvl72"):
        found[preset, "ib"] = {k: (nodes[k], "assumed", source) for k in ("c", "efficiency")}
    book = "jax-ml/scaling-book, sharding: "
    for preset in ("v4", "v5e", "v5p", "v6e"):
        claimed = 1.0 if preset == "v4" else 0.9  # 45e9 of 50e9, 90e9 of 100e9 bytes/s of a link
        found[preset, "ici"] = {
            "a0_ns": (5000.0, "assumed", book + "3 hops of 1 us take about 8 us on v5e"),
            "efficiency": (
                0.95 * claimed,
                "assumed",
                book + "an all-gather on v5e reaches about 95 % of the 45e9 bytes/s it claims",
            ),
        }
    return found


def main() -> None:
    """Fit, print, and write on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="update flint/clusters")
    write = parser.parse_args().write
    fitted = fit()
    tables = {(p, Cluster.load(p).network[0].name): c for p, c in fitted.items()}
    for (preset, tier), constants in {**tables, **assumed(fitted)}.items():
        listed = ", ".join(f"{name} {value:.4g}" for name, (value, _, _) in constants.items())
        print(f"{preset} {tier}: {listed}")
        if write:
            set_constants(CLUSTERS / f"{preset}.toml", f"network.{tier}.constants", constants)


if __name__ == "__main__":
    main()
