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

from benchmarks import collective_rows as rows
from benchmarks.kernel_rows import PRESETS
from flint.backends.cost.fitting import rings as fitting
from flint.backends.cost.fitting.rings import fit_host, fit_rings, ring_error
from flint.backends.cost.fitting.toml_constants import Constant, set_constants
from flint.cluster.load import PRESETS as CLUSTERS
from flint.cluster.models import Cluster
from flint.ir.program import Collective

#: Bytes from which NCCL reduced floating-point numbers in the switch, on 8 GPUs.
IN_SWITCH_BYTES = 32 << 20
#: Bus bandwidth (B/s) of an all-reduce of 512 MiB in the switch on 8 GPUs, and GPUs from which it
#: is taken, by preset.
IN_SWITCH = {"h100-dgx": (445e9, 5), "h200-dgx": (480e9, 5), "b200-dgx": (703e9, 6)}
#: PCIe: two GPUs reach each other, more share the way through the host.
THROUGH_HOST = ("l40s",)
SOURCE = (
    "benchmarks/fit_nccl.py on half of aiconfigurator's NCCL measurements of {gpu}, {sizes} GPUs"
)


def in_switch(row: rows.Measured, preset: str) -> bool:
    """Whether NCCL reduced in the switch."""
    wide = preset in IN_SWITCH and row.call.size >= IN_SWITCH[preset][1]
    reduces = row.call.collective is Collective.ALL_REDUCE and not row.cannot_reduce_in_switch
    return wide and reduces and row.size_bytes >= IN_SWITCH_BYTES


def fit_in_switch(
    preset: str, measured: list[rows.Measured], bandwidth: float, rings: dict[str, float]
) -> dict[str, float]:
    """Start and efficiency of the reduction in the switch, and the GPUs from which it is taken."""
    speed, members = IN_SWITCH[preset]
    points = [(r.call.comm_bytes, r.call.size, r.measured_ns) for r in measured]
    points.append((512 << 20, 8, (512 << 20) * 2 * 7 / 8 / speed * 1e9))
    return fitting.fit_in_switch(points, members, bandwidth, rings)


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

    `inner` are the constants of the tier inside a node.
    """
    measured = [r for r in rows.over_nodes() if not r.half]
    bandwidth = rows.EFA_BYTES_PER_S["value"] / 1e9
    return fitting.fit_over_nodes(measured, inner["a0_ns"][0], inner["a1_ns"][0], bandwidth)


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
