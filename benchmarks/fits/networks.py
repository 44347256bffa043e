"""Constants of networks, from NCCL's times inside a node, and from public facts between nodes.

What a collective takes is priced as estimates price it (`flint.tools.measure.fitting.networks`, which
`flint calibrate` has, too). Everything is fitted on one half of the rows of a table
(`collective_rows.half_of`); benchmarks/accuracy_collectives.py reports the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks import collective_rows as rows
from benchmarks.fits.fit import Constant, Fit
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.network.torus import Span
from flint.cluster.load import LENT
from flint.cluster.models import Cluster, Network, Quantity
from flint.ir.program import Collective
from flint.tools.measure.fitting.fit import Bounds, fit
from flint.tools.measure.fitting.networks import NetworkPricing

#: Presets whose inner network is measured, and the name of their GPU in aiconfigurator's tables.
INNER = {
    "a100-80-dgx": "a100_sxm",
    "h100-dgx": "h100_sxm",
    "h200-dgx": "h200_sxm",
    "b200-dgx": "b200_sxm",
    "b300-hgx": "b300_sxm",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "l40s": "l40s",
}
#: Least, most and first value.
BOUNDS: Bounds = {
    "a0_ns": (1000.0, 20e3, 5000.0),
    "a1_ns": (100.0, 6000.0, 900.0),
    "c": (0.0, 6000.0, 900.0),
    "low_efficiency": (0.02, 0.95, 0.5),
    "bulk_a0_ns": (0.0, 40e3, 8000.0),
    "bulk_a1_ns": (0.0, 15e3, 1500.0),
    "efficiency": (0.3, 0.95, 0.83),
    "own_part": (0.0, 1.0, 0.4),
    "p2p_low_bytes_per_s": (5e8, 20e9, 6e9),
    "p2p_a0_ns": (0.0, 20e3, 4000.0),
    "p2p_efficiency": (0.3, 0.95, 0.74),
}
#: Presets of which an older NCCL was measured, and what it differs in.
OLDER = ("a100-80-dgx", "h100-dgx", "h200-dgx")
OLDER_BOUNDS: Bounds = {
    "a0_ns": (1000.0, 60e3, 20000.0),
    "a1_ns": (0.0, 6000.0, 500.0),
    "low_efficiency": (0.02, 0.95, 0.5),
    "bulk_a0_ns": (0.0, 60e3, 8000.0),
}
IN_SWITCH: Bounds = {"nvls_a0_ns": (0.0, 150e3, 30e3), "nvls_efficiency": (0.2, 0.95, 0.65)}
HOST: Bounds = {"host_bytes_per_s": (5e9, 60e9, 20e9), "sockets_bytes_per_s": (3e9, 60e9, 12e9)}
#: Between nodes.
STEP: Bounds = {"a1_ns": (1000.0, 150e3, 10e3)}
LARGE: Bounds = {"efficiency": (0.3, 0.95, 0.85)}
PROTOCOLS: Bounds = {
    "c": (0.0, 20e3, 1500.0),
    "low_efficiency": (0.02, 0.9, 0.2),
    "bulk_a0_ns": (0.0, 300e3, 20e3),
}
#: The most that the protocol of small messages has of the bandwidth of any adapter.
MOST_LOW = 0.9
#: Bus bandwidth (B/s) of an all-reduce of 512 MiB in the switch on 8 GPUs, as NVIDIA has it. Links and
#: switches of HGX B300 are those of B200.
BUS = {"h100-dgx": 445e9, "h200-dgx": 480e9, "b200-dgx": 703e9, "b300-hgx": 703e9}
#: Members from which NCCL reduces in the switch: those from which its times fall in the tables.
SWITCH_FROM = {
    "h100-dgx": 5,
    "h200-dgx": 5,
    "b200-dgx": 6,
    "b300-hgx": 6,
    "gb200-nvl72": 6,
    "gb300-nvl72": 6,
}
#: The network between nodes that others are taken for; and those.
FABRIC = ("h100-dgx", "ib")
LIKE_INFINIBAND = (
    ("a100-40-dgx", "ib"), ("a100-80-dgx", "ib"), ("a100-80-hdr4", "ib"), ("a100-80-pcie", "ib"),
    ("h100-roce", "roce"), ("h200-dgx", "ib"), ("b200-dgx", "ib"), ("b300-hgx", "ib"),
    ("gb200-nvl72", "ib"), ("gb300-nvl72", "ib"), ("l40s", "ib"), ("rtx-pro-6000", "ib"),
    ("mi300x", "ib"),
)  # fmt: skip
#: What RCCL, which began as NCCL, is taken to share with it, and what its all-reduces on 8 MI300X say.
RCCL = ("a1_ns", "own_part")
RCCL_BOUNDS: Bounds = {name: BOUNDS[name] for name in ("a0_ns", "c", "efficiency")}
#: Presets whose tables have groups of four at most, in which nothing reduces in the switch.
RACKS = ("gb200-nvl72", "gb300-nvl72")
#: Presets whose large messages start later, but whose steps do not take longer.
HOPPER = ("h100-dgx", "h200-dgx")
_SHOWN = "members from which NCCL's times on up to 8 GPUs show it"
SMOL = "Hugging Face, The Smol Training Playbook: p5.48xlarge, nccl-tests"
#: Large messages inside a node: the share of 450 GB/s that two H100 reach, and their start: fits of
#: all-to-alls alone that leave out `c` have 4.4 to 5.7 us on all GPUs with NVLink but A100.
MESSAGE: dict[str, Constant] = {
    "message_a0_ns": (5000.0, "assumed", "all-to-alls of H100, H200, B200 and GB200 start later"),
    "message_efficiency": (0.811, "measured", f"{SMOL}: 364.93 GB/s between two H100"),
}


#: Rows of a rack of 72 say what each member adds to the start in the switch.
RACK: Bounds = {"nvls_member_ns": (0.0, 40e3, 5000.0), "nvls_efficiency": (0.2, 0.95, 0.5)}


@dataclass(frozen=True)
class OverNodes:
    """What is measured between nodes of a preset.

    `rows` are those to fit on, `said` is what a source says of them, `known` are constants that are
    not fitted, called `names`.
    """

    rows: Callable[[], list[rows.Measured]]
    said: str
    bounds: Bounds
    known: Callable[[], Mapping[str, Constant]] = dict
    names: tuple[str, ...] = ()


def _half(measured: Sequence[rows.Measured]) -> list[rows.Measured]:
    return [r for r in measured if not r.half]


def _p5() -> list[rows.Measured]:
    """Single facts, of which none is held out."""
    facts = [*rows.public("aws"), *rows.public("smol")]
    return [r for r in facts if r.call.collective is Collective.ALL_REDUCE]


def _of_p4de() -> dict[str, Constant]:
    """The ramp of EFA, which no figure of p5 shows."""
    there = _constants("a100-80-efa", "efa")
    ratio = _bandwidth("h100-efa", "efa") / _bandwidth("a100-80-efa", "efa")
    whose = "as efa of a100-80-efa: "
    scale = {"low_efficiency": 1 / ratio}
    return {
        n: (there[n].value * scale.get(n, 1.0), "assumed", whose + there[n].source)
        for n in PROTOCOLS
    }


MESSAGES_OVER_NODES = ("message_a0_ns", "message_efficiency", "p2p_efficiency", "p2p_peer_ns")


def over_nodes() -> dict[str, OverNodes]:
    """What is measured between nodes, by preset."""
    ndr = (0.94, "measured", "NVIDIA, nccl-tests issue 290: 46-48 GB/s of an NDR adapter")
    return {
        "a100-80-efa": OverNodes(
            lambda: _half(rows.over_nodes()),
            "half of AWS's all-reduces over EFA on 2 nodes of 8 A100",
            {**STEP, **LARGE, **PROTOCOLS},
        ),
        "h100-efa": OverNodes(
            _p5,
            "all-reduces over EFA on 2 to 16 nodes of 8 H100 that AWS and a playbook give",
            {**STEP, **LARGE},
            _of_p4de,
            tuple(PROTOCOLS),
        ),
        "h100-dgx": OverNodes(
            lambda: _half(rows.public("nebius")),
            "half of an all-reduce over InfiniBand on 2 nodes of 8 H100",
            {**STEP, **PROTOCOLS},
            lambda: {"efficiency": ndr},
            ("efficiency",),
        ),
    }


def fits() -> list[Fit]:
    """Inner networks, then those between nodes, then networks that nothing here measures."""
    return [
        *(_inner_fit(preset) for preset in INNER),
        *(_older_fit(preset) for preset in OLDER),
        _like_fit("nccl-as", "a100-40-dgx", "nvlink", ("a100-80-dgx", "nvlink")),
        _like_fit("nccl-as", "a100-80-pcie", "pcie", ("l40s", "pcie")),
        _like_fit("rccl-as", "mi300x", "xgmi", ("a100-80-dgx", "nvlink"), RCCL),
        Fit("rccl", "mi300x", "network.xgmi.constants", tuple(RCCL_BOUNDS), 12, _rccl, RCCL_BOUNDS),
        *_outer_fits(),
        *(_like_fit("nodes-as", *there, FABRIC) for there in LIKE_INFINIBAND),
    ]


def _inner_fit(preset: str) -> Fit:
    bounds, tier = _inner_bounds(preset), Cluster.load(preset).network[0].name
    fixed = tuple(_fixed(preset)) if preset != "gb300-nvl72" else ()
    rows_ = sum(not r.half for r in rows.inside_a_node(INNER[preset]))
    names = (*bounds, *_messages(preset), *fixed)
    table, run = f"network.{tier}.constants", partial(inner, preset)
    return Fit("nccl", preset, table, names, rows_, run, bounds, quick=preset == "h100-dgx")


def _rccl() -> dict[str, Constant]:
    known = {n: _value("a100-80-dgx", "nvlink", n) for n in RCCL}
    calls = _half(rows.public("rccl"))
    found = fitted(Cluster.load("mi300x"), 0, calls, RCCL_BOUNDS, known)
    source = "benchmarks.fits rccl on half of an all-reduce by RCCL on 8 MI300X"
    return {name: (value, "fitted", source) for name, value in found.items()}


def _older_fit(preset: str) -> Fit:
    """What collectives of an older NCCL differ in: their start, and their protocol of small messages."""

    def run() -> dict[str, Constant]:
        now = {n: q.value for n, q in _constants(preset, "nvlink").items() if n not in OLDER_BOUNDS}
        calls = _half(rows.older(preset))
        found = fitted(Cluster.load(preset), 0, calls, OLDER_BOUNDS, now)
        source = "benchmarks.fits nccl-older on half of Azure's all-reduces with NCCL 2.18 to 2.20"
        return {name: (value, "fitted", source) for name, value in found.items()}

    table, count = "network.nvlink.libraries.nccl-2-20", len(_half(rows.older(preset)))
    return Fit("nccl-older", preset, table, tuple(OLDER_BOUNDS), count, run, OLDER_BOUNDS)


def _inner_bounds(preset: str) -> Bounds:
    if preset == "gb200-nvl72":
        return {**BOUNDS, **RACK}
    if preset == "gb300-nvl72":
        return BOUNDS
    if preset == "l40s":
        return {**{n: b for n, b in BOUNDS.items() if n not in _fixed(preset)}, **HOST}
    bounds = {**BOUNDS, **IN_SWITCH} if preset in SWITCH_FROM else dict(BOUNDS)
    if preset in HOPPER:
        del bounds["bulk_a1_ns"]
    return bounds


def inner(preset: str) -> dict[str, Constant]:
    """Constants of the inner network of a preset."""
    cluster, measured = Cluster.load(preset), rows.inside_a_node(INNER[preset])
    calls = [r for r in measured if not r.half] + _in_the_switch(preset)
    fixed = _fixed(preset)
    values = {name: value for name, (value, _, _) in fixed.items()}
    found = fitted(cluster, 0, calls, _inner_bounds(preset), values)
    most = max(r.call.size for r in measured)
    chip = cluster.chip.name
    source = f"benchmarks.fits nccl on half of aiconfigurator's NCCL times of {chip}, 2-{most} GPUs"
    rack = "benchmarks.fits nccl on CoreWeave's all-reduces of a GB200 NVL72"
    constants = {
        name: (value, "fitted", rack if name in RACK and preset == "gb200-nvl72" else source)
        for name, value in found.items()
    }
    own = {} if preset == "gb300-nvl72" else fixed  # its base has the same switches
    return {**constants, **own, **_messages(preset)}


def _fixed(preset: str) -> dict[str, Constant]:
    """What is not fitted: what reduces in the switch, and what a fit puts to its bound of 0."""
    if preset == "l40s":
        return {"c": (0.0, "fitted", "NCCL's times over PCIe have no ramp beside its protocols'")}
    if preset not in SWITCH_FROM:
        return {}
    if preset in RACKS:
        start = (0.0, "assumed", "all of it is of its members")
        return {"nvls_a0_ns": start, "nvls_from": (6.0, "assumed", "as b200-dgx: " + _SHOWN)}
    return {"nvls_from": (float(SWITCH_FROM[preset]), "fitted", _SHOWN)}


def _messages(preset: str) -> dict[str, Constant]:
    """What NVLink gives a message; over PCIe it has what rings have."""
    if preset == "l40s":
        return {}
    if preset == "h100-dgx":
        return MESSAGE
    return {
        name: (value, "assumed", f"as H100-SXM5-80GB: {source.removeprefix('as ')}")
        for name, (value, _, source) in MESSAGE.items()
    }


def _in_the_switch(preset: str) -> list[rows.Measured]:
    if preset == "gb200-nvl72":
        return rows.public("coreweave")
    if preset not in BUS:
        return []
    size, call = 512 << 20, CollectiveCall(Collective.ALL_REDUCE, 512 << 20, (Span(0, 8),))
    return [rows.Measured(call, size * 2 * 7 / 8 / BUS[preset] * 1e9, "half", size, 0)]


def fitted(
    cluster: Cluster,
    tier: int,
    measured: Sequence[rows.Measured],
    bounds: Bounds,
    fixed: Mapping[str, float],
) -> dict[str, float]:
    """Constants of a tier within `bounds` that price the rows best, beside those that are `fixed`."""
    first = {name: start for name, (_, _, start) in bounds.items()}
    cluster = rows.with_constants(cluster, tier, {**first, **fixed})
    without = rows.without_reduction_in_switch(cluster)
    whole = np.array([r.cannot_reduce_in_switch for r in measured])
    pricings = (
        (
            whole,
            NetworkPricing([r.call for r in measured if r.cannot_reduce_in_switch], without, tier),
        ),
        (
            ~whole,
            NetworkPricing(
                [r.call for r in measured if not r.cannot_reduce_in_switch], cluster, tier
            ),
        ),
    )

    def predict(values: dict[str, float]) -> NDArray[np.float64]:
        found = np.empty(len(measured))
        for mine, pricing in pricings:
            found[mine] = pricing.predict(values)
        return found

    return fit(bounds, predict, np.array([r.measured_ns for r in measured]))


# Between nodes.


def _outer_fits() -> list[Fit]:
    found = []
    for preset, of in over_nodes().items():
        table = f"network.{Cluster.load(preset).network[1].name}.constants"
        names = (*of.bounds, *of.names, *MESSAGES_OVER_NODES)
        run = partial(outer, preset)
        found.append(Fit("nodes", preset, table, names, len(of.rows()), run, of.bounds, quick=True))
    return found


def outer(preset: str) -> dict[str, Constant]:
    """Constants of the network between nodes of a preset, beside those that it has inside them."""
    cluster, of = Cluster.load(preset), over_nodes()[preset]
    known = of.known()
    values = {name: value for name, (value, _, _) in known.items()}
    found = fitted(cluster, 1, of.rows(), of.bounds, values)
    source = f"benchmarks.fits nodes on {of.said}"
    constants = {name: (value, "fitted", source) for name, value in found.items()}
    return {**constants, **known, **_messages_over_nodes(preset, found["a1_ns"])}


def _messages_over_nodes(preset: str, step_ns: float) -> dict[str, Constant]:
    """Messages and all-to-alls: of EFA on H100 two figures each are known, others are like it.

    What a message starts later is as many steps there as here.
    """
    start_ns, peer_ns = _efa_starts()
    is_efa = preset == "h100-efa"
    ratio = 1.0 if is_efa else step_ns / _constants("h100-efa", "efa")["a1_ns"].value
    start_ns = start_ns - step_ns if is_efa else _value("h100-efa", "efa", "message_a0_ns") * ratio
    found = {
        "message_a0_ns": (start_ns, "40-53 us of the smallest messages"),
        "message_efficiency": (0.85, "42-43 GB/s of large messages, in two channels"),
        "p2p_efficiency": (
            0.864,
            "81 GB/s of an all-to-all over two nodes, half of which leaves them",
        ),
        "p2p_peer_ns": (peer_ns * ratio, "60 us over 2 nodes and 621 us over 16"),
    }
    kind, whose = ("measured", "") if is_efa else ("assumed", "as efa of h100-efa: ")
    return {name: (value, kind, f"{whose}{SMOL}: {said}") for name, (value, said) in found.items()}


def _efa_starts() -> tuple[float, float]:
    """Start of the smallest message without the launch, and of each message of an all-to-all."""
    facts = {(r.call.collective, r.call.size, r.size_bytes): r for r in rows.public("smol")}
    small = facts[Collective.NONE, 2, 8].measured_ns
    few, many = (
        facts[Collective.ALL_TO_ALL, n, b].measured_ns for n, b in ((16, 256), (128, 2048))
    )
    return small - _value("h100-efa", "nvlink", "a0_ns"), (many - few) / (15 * 8 - 8)


def _like_fit(
    name: str, preset: str, tier: str, like: tuple[str, str], some: tuple[str, ...] = ()
) -> Fit:
    """The constants of another tier. How fast its protocol of small messages is, its links decide not."""
    names = some or tuple(_constants(*like))

    def run() -> dict[str, Constant]:
        there = _constants(*like)
        values = {n: q.value for n, q in there.items()}
        if "low_efficiency" in values:
            ratio = _bandwidth(preset, tier) / _bandwidth(*like)
            values["low_efficiency"] = min(values["low_efficiency"] / ratio, MOST_LOW)
        whose = f"as {like[1]} of {like[0]}"
        return {n: (values[n], "assumed", f"{whose}: {_own_source(there[n])}") for n in names}

    return Fit(name, preset, f"network.{tier}.constants", names, len(names), run, {}, quick=True)


def _own_source(quantity: Quantity) -> str:
    match = LENT.match(quantity.source)
    return quantity.source[match.end() :] if match else quantity.source


def _value(preset: str, tier: str, name: str) -> float:
    return _constants(preset, tier)[name].value


def _network(preset: str, tier: str) -> Network:
    return next(n for n in Cluster.load(preset).network if n.name == tier)


def _constants(preset: str, tier: str) -> Mapping[str, Quantity]:
    return _network(preset, tier).constants


def _bandwidth(preset: str, tier: str) -> float:
    return _network(preset, tier).bandwidth_bytes_per_s.value
