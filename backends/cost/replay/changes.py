"""What a user changes of a step and keeps the rest of: parts made faster, kinds put on another cluster.

A *part* is a kind of kernel (`gemm`, `attention` with its backward pass, ...), `compute` (all kernels),
`network` (all communication) or a tier of the network by name (communication whose outermost tier it
is), and `host`. Of communication `PART:bandwidth` and `PART:latency` are parts of a time: the model says
how much of it the bytes take on the links (`collectives.transfer_share`), the rest is latency.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.collectives.choose import transfer_share
from flint.backends.cost.network.placement import call_of, tier_of_row
from flint.backends.cost.row_prices import Pricing, RowPrices, model_prices
from flint.cluster.models import Cluster
from flint.cluster.named import load_cluster
from flint.errors import FlintError, nearest
from flint.ir.arrays import Float64s, Mask
from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Kind, Program

COMPUTE, NETWORK = "compute", "network"
BANDWIDTH, LATENCY = "bandwidth", "latency"
_KINDS: dict[str, tuple[KernelKind, ...]] = {
    k.name.lower(): (k,) for k in KernelKind if k is not KernelKind.UNPRICED
}
_KINDS["attention"] = (KernelKind.ATTENTION, KernelKind.ATTENTION_BACKWARD)
_FACTOR = re.compile(r"(\d+(?:\.\d*)?|\.\d+)x?")


@dataclass(frozen=True, slots=True)
class Scale:
    """`part` made `factor` times as fast; of latency, `factor` times as long."""

    part: str
    quantity: str
    factor: float

    @property
    def text(self) -> str:
        """As a user writes it."""
        part = f"{self.part}:{self.quantity}" if self.quantity else self.part
        return f"{part}={self.factor:g}x"


@dataclass(frozen=True, slots=True)
class Replacement:
    """`part` on another cluster; of the host, None: it takes no time."""

    part: str
    cluster: Cluster | None

    @property
    def text(self) -> str:
        """As a user writes it."""
        return f"{self.part}={self.cluster.name if self.cluster else 'none'}"


@dataclass(frozen=True, slots=True)
class Changes:
    """All that is changed, replacements before scales."""

    scales: tuple[Scale, ...] = ()
    replacements: tuple[Replacement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.scales or self.replacements)

    @property
    def texts(self) -> list[str]:
        """Each as a user writes it."""
        return [*(r.text for r in self.replacements), *(s.text for s in self.scales)]

    def also(self, part: str, cluster: Cluster) -> Changes:
        """The changes with a part on another cluster, too."""
        return replace(self, replacements=(*self.replacements, Replacement(part, cluster)))

    @property
    def host_speed(self) -> float:
        """How much faster the host is; inf where it takes no time."""
        if any(r.part == HOST for r in self.replacements):
            return math.inf
        return math.prod(s.factor for s in self.scales if s.part == HOST)

    def of_host(self, cluster: Cluster, *, has_rows: bool) -> Cluster:
        """The cluster with the launches of its host changed; `has_rows`: the program has them.

        Raises FlintError FL830 where neither says what the host does.
        """
        asked = [s.text for s in self.scales if s.part == HOST]
        asked += [r.text for r in self.replacements if r.part == HOST]
        if not asked or has_rows:
            return cluster
        launch = cluster.host_launch_ns
        if launch is None:
            raise FlintError(
                "FL830",
                f"{asked[0]} changes nothing: the cluster does not say how often its host launches",
                help="set host_launch_ns in its file, or estimate a measured workload",
            )
        value = launch.value / self.host_speed
        return cluster.model_copy(
            update={"host_launch_ns": launch.model_copy(update={"value": value})}
        )


#: Nothing is changed.
UNCHANGED = Changes()


def parse_changes(scales: Sequence[str], replacements: Sequence[str], cluster: Cluster) -> Changes:
    """Read `PART=FACTOR` and `KIND=CLUSTER`. Raises FlintError FL830, and those of clusters."""
    return Changes(
        tuple(_scale(text, cluster) for text in scales),
        tuple(_replacement(text) for text in replacements),
    )


def _scale(text: str, cluster: Cluster) -> Scale:
    name, _, value = text.partition("=")
    factor = _FACTOR.fullmatch(value.strip())
    if not factor or not 0 < float(factor[1]) < 1e9:
        raise FlintError(
            "FL830",
            f"--scale {text} has no factor",
            help="write PART=FACTOR, as in gemm=1.5x: one and a half times as fast",
        )
    part, _, quantity = name.strip().partition(":")
    tiers = [n.name for n in cluster.network]
    _require_part("--scale", text, part, [COMPUTE, HOST, NETWORK, *tiers, *_KINDS])
    if quantity and (part not in (NETWORK, *tiers) or quantity not in (BANDWIDTH, LATENCY)):
        raise FlintError(
            "FL830",
            f"--scale {text}: {part} has no {quantity}",
            help=f"{NETWORK} and its tiers have {BANDWIDTH} and {LATENCY}",
        )
    return Scale(part, quantity, float(factor[1]))


def _replacement(text: str) -> Replacement:
    part, _, name = (w.strip() for w in text.partition("="))
    _require_part("--replace", text, part, [COMPUTE, HOST, NETWORK, *_KINDS])
    if part == HOST:
        if name != "none":
            raise FlintError(
                "FL830",
                f"--replace {text}: a cluster does not describe the host's work between launches",
                help="write host=none, or --scale host=2x",
            )
        return Replacement(part, None)
    return Replacement(part, load_cluster(name))


def _require_part(option: str, text: str, part: str, known: list[str]) -> None:
    if part not in known:
        raise FlintError(
            "FL830",
            f"{option} {text}: there is no part '{part}'{nearest(part, known)}",
            help=f"parts are {', '.join(known)}",
        )


@dataclass(frozen=True, slots=True)
class Replacing:
    """Puts parts on other clusters: `pricings` has how each is priced."""

    pricings: tuple[tuple[str, Pricing], ...]

    def of(self, program: Program, prices: RowPrices) -> RowPrices:
        """The models' prices, those of replaced rows on their own clusters."""
        for part, pricing in self.pricings:
            rows = part_of(program, part, pricing)
            found = model_prices(program, pricing)
            prices = RowPrices(
                np.where(rows, found.ns, prices.ns),
                np.where(rows, found.missing, prices.missing),
                np.where(rows, found.basis, prices.basis).astype(np.uint8),
                np.where(rows, found.wire_ns, prices.wire_ns),
                prices.waiting_ns,
                prices.replaced | rows,
            )
        return prices


@dataclass(frozen=True, slots=True)
class Scaling:
    """Makes parts faster, whatever their times rest on. What waits for other ranks waits as long."""

    changes: Changes
    pricing: Pricing

    def of(self, program: Program, prices: RowPrices) -> RowPrices:
        """Times divided by what their parts are faster."""
        for scale in self.changes.scales:
            rows = part_of(program, scale.part, self.pricing)
            share = share_of_quantity(program, rows, scale, self.pricing)
            speed = 1 / scale.factor if scale.quantity == LATENCY else scale.factor
            left = np.where(rows, 1 - share + share / speed, 1.0)
            waits = prices.waiting_ns
            ns = waits + (prices.ns - waits) * left
            prices = replace(prices, ns=ns, wire_ns=prices.wire_ns * left)
        if math.isinf(self.changes.host_speed):
            ns = np.where(program.op == OpClass.HOST, 0.0, prices.ns)
            prices = replace(prices, ns=ns)
        return prices


def share_of_quantity(program: Program, rows: Mask, scale: Scale, pricing: Pricing) -> Float64s:
    """For each of `rows` how much of its time a scale changes."""
    share = np.ones(len(program))
    if not scale.quantity:
        return share
    known: dict[CollectiveCall, float] = {}
    for row in np.flatnonzero(rows & (program.kind >= Kind.COLLECTIVE)).tolist():
        call = call_of(program, row, pricing.placement)
        if call not in known:
            known[call] = transfer_share(call, pricing.cluster)
        share[row] = known[call]
    changed = share if scale.quantity == BANDWIDTH else 1 - share
    unsized = program.op == OpClass.COMMUNICATION  # which part is bytes and which is latency?
    return np.where(unsized, 0.0, changed)


def part_of(program: Program, part: str, pricing: Pricing) -> Mask:
    """The rows of a part."""
    if part == HOST:
        return np.asarray(program.op == OpClass.HOST)
    if part == COMPUTE:
        return on_device(program)
    communicates = np.asarray(program.kind >= Kind.COLLECTIVE)
    if part == NETWORK:
        return np.asarray(communicates | (program.op == OpClass.COMMUNICATION))
    if part in _KINDS:
        return np.isin(kernel_kinds(program), _KINDS[part])
    tier = pricing.cluster.tier(part)
    found = np.zeros(len(program), dtype=np.bool_)
    for row in np.flatnonzero(communicates).tolist():
        found[row] = tier_of_row(program, row, pricing.placement) == tier
    return found


# Kinds of kernels by row, also of those that an operator launches beside its main one.

#: What the host does, and kernels of which nothing is known but their time.
HOST = "host"
OTHER = "other"
#: Kernels that communicate, of which nothing is known but their time.
COMMUNICATION = "communication"


def kernel_kinds(program: Program) -> Int64s:
    """For each row its `KernelKind`, -1 where it is not a kernel or of no kind that is known.

    What an operator's call launches beside its main kernel is of the kind of that.
    """
    kernels, rows = kernels_of(program)
    found: Int64s = np.full(len(program), -1, dtype=np.int64)
    found[rows] = kernels.kind
    found[(found == KernelKind.UNPRICED) & (program.measured_ns > 0)] = -1
    mains = main_rows(program)
    beside = np.flatnonzero((found < 0) & (mains >= 0) & on_device(program))
    found[beside] = found[mains[beside]]
    return found


def main_rows(program: Program) -> Int64s:
    """For each row that an operator's call launched the row with the work of that call, else -1."""
    found: Int64s = np.full(len(program), -1, dtype=np.int64)
    if not program.launcher.any():
        return found
    _, rows = kernels_of(program)
    mains = rows[program.launcher[rows] > 0]
    calls, number = np.unique(program.launcher, return_inverse=True)
    of_call: Int64s = np.full(len(calls), -1, dtype=np.int64)
    of_call[number[mains][::-1]] = mains[::-1]
    launched = (program.launcher > 0) & on_device(program)
    found[launched] = of_call[number[launched]]
    return found


def on_device(program: Program) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each row whether it is a kernel or copy of the device: no host, no communication."""
    calculates = (program.op != OpClass.HOST) & (program.op != OpClass.COMMUNICATION)
    return np.asarray((program.kind == Kind.COMPUTE) & calculates)


def communicates(program: Program) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each row whether it is communication, also of which neither bytes nor ends are known."""
    return np.asarray((program.kind >= Kind.COLLECTIVE) | (program.op == OpClass.COMMUNICATION))
