"""EstimateRequest: on what a step is estimated, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flint.requests.option import Form, Request, option

if TYPE_CHECKING:
    from flint.backends.cost.routing import Routing
    from flint.backends.cost.simulate.timeline import Policy
    from flint.cluster.models import Cluster
    from flint.cluster.stack import Stack
    from flint.ir.workload import HasWorkload, Workload


#: Options that the durations in traces have, too.
OF_TRACES = ("stack", "mapping", "unpriced_is_zero", "slow", "chip_map")


@dataclass(frozen=True)
class EstimateRequest(Request):
    """Options of an estimate. Texts are as the command line takes them; None is the usual choice."""

    cluster: str | Path | Cluster | None = option(
        "--cluster",
        "-c",
        metavar="NAME|FILE",
        names="clusters",
        reads=True,
        help="A preset ({clusters}), a TOML file, or ASTRA-sim's network.yml (default for "
        "measured workloads: the cluster of their device).",
    )
    _: KW_ONLY
    stack: str | Path | Stack | None = option(
        "--stack",
        metavar="NAME|FILE",
        names="stacks",
        reads=True,
        swept=True,
        help="Software stack: {stacks}, or a TOML file (default: by program and chip).",
    )
    profile: str | None = option(
        "--profile",
        metavar="NAME",
        names="profiles",
        help="Compiler whose kernels are used: {profiles} (default: that of the capture, else by chip and program).",
    )
    policy: str | Policy | None = option(
        "--overlap",
        metavar="NAME",
        swept=True,
        help="When communication begins: {policies} (default: the stack's; astra-sim: only for estimate).",
    )
    mapping: Mapping[str, str] | str | None = option(
        "--map",
        metavar="AXIS=TIER,...",
        swept=True,
        help="Network tiers of mesh axes, model=nvlink,data=ib (default: the last axis in the inner "
        "tier; flint clusters show NAME has their names).",
    )
    unpriced_is_zero: bool = option(
        "--unpriced",
        form=Form.SWITCH,
        word="zero",
        key="unpriced_is_zero",
        help="Count operations without a price as zero: times are lower bounds.",
    )
    timing: str | None = option(
        "--timing",
        metavar="NAME",
        help="Source of kernel times: model (Flint's, default), compiler (the cycles of "
        "capture --compiler xla-tpu-cycles), or measured (default for what flint import "
        "made).",
    )
    scale: Sequence[str] = option(
        "--scale",
        form=Form.TEXTS,
        metavar="PART=FACTOR",
        help="Change the speed of a part: gemm=2x halves its time, 0.5x doubles it "
        "(repeatable). Parts: kinds of kernels, compute, host, network, tiers by name. "
        "network:bandwidth=2x doubles the bandwidth, network:latency=2x doubles the "
        "latency.",
    )
    replace: Sequence[str] = option(
        "--replace",
        form=Form.TEXTS,
        metavar="KIND=CLUSTER",
        reads=True,
        help="Take the times of a kind of kernels, compute or network from another cluster, "
        "and keep the rest: attention=h200 (repeatable). host=none: launches take no time.",
    )
    slow: Sequence[str] = option(
        "--slow",
        form=Form.TEXTS,
        metavar="WHERE=FACTOR",
        help="Slow down kernels of some ranks, rank:17=1.15, rank:0-7=1.1, host:3=1.1 or by position of "
        "an axis pipe:2=1.2, or leave them a share of a tier's bandwidth, ib@rank:17=50% (repeatable).",
    )
    chip_map: Sequence[str] = option(
        "--chip-map",
        form=Form.TEXTS,
        metavar="WHERE=CLUSTER",
        reads=True,
        help="Run the kernels of some ranks on the chip of another cluster: stage3=h200-dgx, or "
        "ranks as --slow names them (repeatable).",
    )
    measured: Sequence[str | Path | HasWorkload | Workload] = option(
        "--measured",
        form=Form.TEXTS,
        metavar="FILE",
        reads=True,
        help="Use the times of a measured workload (flint import) where it has the same "
        "kernels, and scale the models' times elsewhere (repeatable).",
    )
    collective_algorithm: Sequence[str] = option(
        "--collective-algorithm",
        form=Form.TEXTS,
        metavar="KIND=FILE",
        reads=True,
        help="Time collectives by an algorithm for MSCCL and its number of ranks: all-reduce=ring.xml (repeatable).",
    )
    routing: str | Path | Routing | None = option(
        "--routing",
        metavar="NAME|FILE",
        reads=True,
        swept=True,
        help="How tokens are spread over experts: balanced (default), power-law:1.2, or a CSV or JSON "
        "file of loads.",
    )
