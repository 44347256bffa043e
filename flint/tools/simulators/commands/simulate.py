"""`flint simulate`: another simulator on the traces, and where it differs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flint.cli.console import (
    Progress,
    print_error,
    print_json,
    print_note,
    print_text,
    progress_bar,
)
from flint.cli.exits import FOUND
from flint.cli.options import READS, Json, Quiet, Verbose, Writes
from flint.cli.requests import Said, refuse, takes_requests
from flint.errors import FlintError
from flint.requests.estimate import EstimateRequest
from flint.tools.simulators.backends import Backend, Cabling

if TYPE_CHECKING:
    from flint.backends.cost.astrasim.disturbance import Disturbance
    from flint.backends.cost.estimate import Estimate
    from flint.cluster.models import Cluster
    from flint.tools.simulators.inputs import Case, Inputs
    from flint.tools.simulators.outcome import Simulation
    from flint.tools.simulators.packets import PacketFiles
    from flint.tools.simulators.process import Limits

_GIB = 1 << 30
#: SCALE-Sim takes as long as one lets it.
_SCALE_SIM_SECONDS = 300.0


class SimulatorName(StrEnum):
    """The simulators that are known."""

    RULES = "rules"
    ASTRA_SIM = "astra-sim"
    SCALE_SIM = "scalesim"


Traces = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="A directory of traces that flint capture wrote."),
    READS,
]
With = Annotated[
    SimulatorName | None,
    typer.Option(
        "--with",
        help="Which simulator; rules: Flint by ASTRA-sim's rules (default, without --binary).",
    ),
]
Stragglers = Annotated[
    list[str] | None,
    typer.Option(
        "--straggler",
        metavar="RANK:FACTOR",
        help="Slow down the computations of a rank by a factor, such as 5:1.1 (repeatable).",
    ),
]
Jitter = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT", help="Vary each computation of each rank by up to this percentage."
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of --jitter (default 0).")]
Binary = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="ASTRA-sim (default: $FLINT_ASTRA_SIM, or in PATH), or a Python that has scalesim.",
    ),
    READS,
]
Networks = Annotated[
    list[Path] | None,
    typer.Option(
        "--network",
        metavar="FILE|BACKEND",
        help="network.yml (repeatable; default: all beside the traces), or which build of ASTRA-sim: "
        "congestion-unaware, congestion-aware, or htsim or ns3, for which Flint makes files of -c.",
    ),
    READS,
]
Cables = Annotated[
    Cabling | None,
    typer.Option(help="How --network ns3 joins switches of several nodes (default: rail)."),
]
Files = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write the files of --network htsim|ns3 into this new directory, and run nothing.",
    ),
    Writes(adds=True),
]
System = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="system.json (default: that beside the network)."),
    READS,
]
Memory = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Configuration of remote memory (default: memory.json beside the traces).",
    ),
    READS,
]
Limit = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Time limit of a run (default: an hour; scalesim 300)."),
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(metavar="GIB", help="Memory limit of a run (default: the machine's memory)."),
]


#: Options of an estimate that runs of traces by rules, and with late ranks, do not have.
_ALL_BUT_SLOW = [name for name in EstimateRequest.options() if name != "slow"]

_SAID = Said(
    {
        "cluster": "The cluster of the estimate that astra-sim is compared with (default: that of the traces), "
        "or the array of scalesim: a preset ({clusters}) or a TOML file."
    }
)


@takes_requests
def simulate(
    path: Traces,
    with_: With = None,
    binary: Binary = None,
    networks: Networks = None,
    system: System = None,
    memory: Memory = None,
    topology: Cables = None,
    files: Files = None,
    *,
    request: Annotated[EstimateRequest, _SAID],
    stragglers: Stragglers = None,
    jitter: Jitter = None,
    seed: Seed = None,
    limit: Limit = None,
    memory_limit: MemoryLimit = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Run traces by ASTRA-sim's rules in Flint, or in your own simulator.

    astra-sim runs in a scratch folder, once for each network, within the limits. A run is good if
    every rank has finished, whatever its exit status is. Says why its time differs from flint
    estimate's, or what ranks wait for. --slow, --straggler and --jitter make ranks late, in both.
    Others apply to the estimate that astra-sim is compared with (default of -c: that of the traces).
    scalesim counts cycles of products on an array of -c. Exits with 1 where something is wrong.
    """
    from flint.backends.cost.astrasim.disturbance import read_disturbance

    name = with_ or (SimulatorName.RULES if binary is None else SimulatorName.ASTRA_SIM)
    limits = _limits(limit, memory_limit, name)
    asked = _Asked(path, networks or (), system, memory, topology, files)
    slowed = [] if name is SimulatorName.SCALE_SIM else _slowed(asked, request)
    late = read_disturbance([*slowed, *(stragglers or ())], jitter, seed or 0)
    is_idle = seed is not None and not late.jitter
    told = ["--seed changes nothing without --jitter"] if is_idle else []
    with progress_bar(f"{name.value}: {_UNITS[name]}", quiet=quiet or json_) as progress:
        if name is SimulatorName.SCALE_SIM:
            lateness = (("--straggler", stragglers), ("--jitter", jitter), ("--seed", seed))
            others = (("--network", networks), ("--system", system), ("--memory", memory))
            _refuse((*others, *asked.cables, *lateness), name)
            refuse(request, [n for n in request.options() if n != "cluster"], _this_run(name))
            found = _products(path, binary, request, limits, progress)
        elif name is SimulatorName.RULES:
            limits_given = (("--limit", limit), ("--memory-limit", memory_limit))
            builds = (("--network", asked.backend),)
            _refuse((("--binary", binary), *limits_given, *builds, *asked.cables), name)
            refuse(request, _ALL_BUT_SLOW, _this_run(name))
            found = _by_rules(path, (networks or (), system, memory), late, told, progress)
        else:
            if late:
                refuse(request, _ALL_BUT_SLOW, _this_run(name))
            if files is not None:
                return print_text(asked.write(request))
            found = _traces(asked, binary, request, limits, (late, told), progress)
    for warning in found.warnings:
        print_note(f"warning: {warning}", quiet=quiet)
    _print(found, verbose, as_json=json_)


def _print(found: Simulation, verbose: int, *, as_json: bool) -> None:
    """Print what was found, and exit with 1 if something went wrong."""
    if as_json:
        print_json(found.to_json())
    else:
        print_text(found.to_text(verbose=verbose > 0))
    for failure in found.failures:
        print_error(failure)
    if found.failures:
        raise typer.Exit(FOUND)


def _slowed(asked: _Asked, request: EstimateRequest) -> list[str]:
    """The ranks that --slow names, as --straggler has them. Raises FlintError FL945 for links."""
    if not request.slow:
        return []
    from flint.backends.cost.network.placement import NetworkPlacement
    from flint.backends.cost.unlike import unlike_of
    from flint.cli.inputs import load_workload
    from flint.tools.simulators.inputs import find_inputs

    for text in request.slow:
        if "@" in text:
            raise FlintError(
                "FL945",
                f"--slow {text}: ASTRA-sim's networks have one bandwidth for all links of a tier",
                help="use flint estimate, or change the tier's bandwidth in network.yml",
            )
    workload = load_workload(asked.path)
    inputs = find_inputs(asked.path, asked.paths, asked.system, None)
    placement = NetworkPlacement(workload.mesh, _cluster_of(inputs, inputs.cases[0], request))
    unlike = unlike_of(EstimateRequest(slow=request.slow), workload, placement)
    assert unlike is not None
    return [f"{rank}:{factor:.9g}" for rank, factor in enumerate(unlike.slow) if factor != 1]


#: What progress counts.
_UNITS = {
    SimulatorName.RULES: "ranks that finished",
    SimulatorName.ASTRA_SIM: "ranks that finished",
    SimulatorName.SCALE_SIM: "products",
}


def _refuse(options: tuple[tuple[str, object], ...], name: SimulatorName | Backend) -> None:
    for option, value in options:
        if value is not None:
            raise FlintError(
                "FL218", f"{option} does not apply to {_this_run(name)}", help="omit it"
            )


def _this_run(name: SimulatorName | Backend) -> str:
    return f"this run with {name.value}"


def _traces(
    asked: _Asked,
    binary: str | None,
    request: EstimateRequest,
    limits: Limits,
    disturbed: tuple[Disturbance, Sequence[str]],
    progress: Progress | None,
) -> Simulation:
    """Traces in ASTRA-sim; `request` is what the estimate is of.

    `disturbed` says which ranks are late, and what of the options changes nothing.
    """
    from flint.backends.chakra.checking.listed_files import changed_files
    from flint.tools.simulators.astra_sim import AstraSim, find_binary
    from flint.tools.simulators.explained import Explainer
    from flint.tools.simulators.rules import beside_undisturbed, disturbed_inputs
    from flint.tools.simulators.simulation import simulate_all

    simulator = AstraSim(find_binary(binary, asked.backend), limits)
    backend = asked.backend or simulator.backend or Backend.UNAWARE
    if simulator.backend not in (None, backend):
        raise FlintError(
            "FL710", f"{simulator.name} is not a build for {backend}", help="name another --binary"
        )
    inputs = asked.inputs(backend, request)
    late, told = disturbed
    warnings = (*changed_files(inputs.traces), *told)
    if late:
        look_beside = partial(beside_undisturbed, inputs)
        with disturbed_inputs(inputs, late) as changed:
            return simulate_all(simulator, changed, look_beside, progress, late, warnings)
    look = Explainer(inputs, _estimator(inputs, request), backend is not Backend.UNAWARE)
    return simulate_all(simulator, inputs, look, progress, warnings=warnings)


@dataclass(frozen=True)
class _Asked:
    """The traces, and what options say of the files that a simulator is given."""

    path: Path
    networks: Sequence[Path]
    system: Path | None
    memory: Path | None
    topology: Cabling | None
    files: Path | None

    @property
    def backend(self) -> Backend | None:
        """The build that --network names; None for files. Raises FlintError FL218 for both."""
        named = [b for b in Backend if any(str(n) == b.value for n in self.networks)]
        if named and len(self.networks) > 1:
            raise FlintError(
                "FL218", "--network names a build and more", help="give a build or files"
            )
        return named[0] if named else None

    @property
    def paths(self) -> Sequence[Path]:
        """The networks that are files."""
        return () if self.backend else self.networks

    @property
    def cables(self) -> tuple[tuple[str, object], ...]:
        """The options that only simulators of packets have."""
        return ("--topology", self.topology), ("--files", self.files)

    def inputs(self, backend: Backend, request: EstimateRequest) -> Inputs:
        """All that a simulator of this build is given."""
        from flint.tools.simulators.inputs import find_inputs

        if not backend.sends_packets:
            _refuse(self.cables, backend)
            flat = backend is Backend.AWARE
            return find_inputs(self.path, self.paths, self.system, self.memory, flat=flat)
        found = find_inputs(
            self.path, self.paths or [self.path / "network.yml"], self.system, self.memory
        )
        (case,) = found.cases[:1]
        return replace(
            found, cases=(replace(case, packets=self._packets(found, backend, request)),)
        )

    def _packets(self, inputs: Inputs, backend: Backend, request: EstimateRequest) -> PacketFiles:
        from flint.backends.cost.network.placement import NetworkPlacement
        from flint.cli.inputs import load_workload
        from flint.tools.simulators.packets import packet_files

        if self.topology is not None and backend is Backend.HTSIM:
            _refuse((("--topology", self.topology),), backend)
        mesh = load_workload(self.path).mesh
        cluster = _cluster_of(inputs, inputs.cases[0], request)
        placement = NetworkPlacement(mesh, cluster, request.mapping)
        return packet_files(backend, placement, self.topology or Cabling.RAIL)

    def write(self, request: EstimateRequest) -> str:
        """Write what a simulator of packets is given, and say what that is."""
        backend = self.backend
        if backend is None or not backend.sends_packets:
            raise FlintError("FL218", "--files needs --network htsim or ns3", help="name one")
        found = self.inputs(backend, request).cases[0].packets
        assert self.files is not None and found is not None
        found.write(self.files)
        told = " ".join([*(f"--{k}={v}" for k, v in found.options.items()), *found.after])
        return f"wrote {', '.join(found.files)} to {self.files}\noptions of the simulator there: {told}"


def _by_rules(
    path: Path,
    files: tuple[Sequence[Path], Path | None, Path | None],
    late: Disturbance,
    told: Sequence[str],
    progress: Progress | None,
) -> Simulation:
    """Traces by Flint's own run of ASTRA-sim's rules; `told` is what of the options changes nothing."""
    from flint.backends.chakra.checking.listed_files import changed_files
    from flint.tools.simulators.inputs import find_inputs
    from flint.tools.simulators.rules import FlintRules, beside_undisturbed
    from flint.tools.simulators.simulation import simulate_all

    inputs = find_inputs(path, *files)
    look = partial(beside_undisturbed, inputs) if late else None
    warnings = (*changed_files(inputs.traces), *told)
    return simulate_all(FlintRules(late), inputs, look, progress, late, warnings)


def _products(
    path: Path,
    interpreter: str | None,
    request: EstimateRequest,
    limits: Limits,
    progress: Progress | None,
) -> Simulation:
    """Products of a captured program in SCALE-Sim."""
    from flint.backends.cost.software import default_profile
    from flint.cli.inputs import load_workload
    from flint.cluster.named import load_cluster
    from flint.passes.profiles import kernels_for
    from flint.tools.simulators.scale_sim import ScaleSim, array_of, find_interpreter, products_of

    if request.cluster is None:
        raise FlintError(
            "FL218", "--with scalesim needs a chip with systolic arrays", help="give -c v5p"
        )
    on = load_cluster(request.cluster)
    array = array_of(on.chip)
    simulator = ScaleSim(find_interpreter(interpreter), limits)
    workload = load_workload(path)
    products = products_of(kernels_for(workload, default_profile(workload, on)), array)
    name = str(workload.metadata.get("name") or "program")
    return simulator.simulate(name, on.chip.name, array, products, progress)


def _estimator(inputs: Inputs, request: EstimateRequest) -> Callable[[Case], Estimate]:
    """What estimates the traces' program for a case: on its cluster, that of the traces, or the case's.

    Raises FlintError FL701, FL702 or FL706 for a cluster that was given and cannot be used.
    """
    from flint.backends.cost.estimate import estimate as estimated
    from flint.cli.inputs import load_workload
    from flint.cluster.named import load_cluster

    if request.cluster is not None:
        request = request.but(cluster=load_cluster(request.cluster))

    def estimate(case: Case) -> Estimate:
        on = _cluster_of(inputs, case, request)
        return estimated(load_workload(inputs.traces.folder), request.but(cluster=on))

    return estimate


def _cluster_of(inputs: Inputs, case: Case, request: EstimateRequest) -> Cluster:
    """The cluster of a request, of the traces, or of the case's files."""
    from flint.cluster.astrasim.files import read_astrasim
    from flint.cluster.load import find_cluster_file
    from flint.cluster.named import load_cluster

    if request.cluster is not None:
        return load_cluster(request.cluster)
    options = getattr(inputs.traces.manifest, "options", None)
    if name := getattr(options, "cluster", None):
        with contextlib.suppress(FlintError):  # it is a file of the user's, which may be anywhere
            return load_cluster(find_cluster_file(name))
    return read_astrasim(case.network, case.system)


def _limits(seconds: float | None, gib: float | None, name: SimulatorName) -> Limits:
    """What the options say. Raises FlintError FL504 for what is no limit."""
    from flint.io.processes import Patience
    from flint.tools.simulators.process import Limits, machine_memory_bytes

    for option, value in (("--limit", seconds), ("--memory-limit", gib)):
        if value is not None and not 0 < value < 1e6:
            raise FlintError(
                "FL504", f"{option} {value:g} is not a limit", help="give a number above 0"
            )
    patience = Patience.from_environment()
    if seconds is None and name is SimulatorName.SCALE_SIM:
        seconds = min(_SCALE_SIM_SECONDS, patience.total_seconds)
    if seconds is not None:
        patience = replace(patience, total_seconds=seconds)
    memory = machine_memory_bytes() if gib is None else int(gib * _GIB)
    return Limits(patience, memory)
