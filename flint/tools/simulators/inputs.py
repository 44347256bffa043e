"""What ASTRA-sim is given: the traces, and the files of a network that Flint writes beside them."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flint.backends.chakra.reading.trace_files import TraceSet, find_traces
from flint.backends.cost.astrasim.files import read_fabric, settings_beside
from flint.backends.cost.astrasim.ring import Fabric
from flint.cluster.astrasim.files import read_system
from flint.errors import FlintError, nearest
from flint.io.bounded import FileKind, is_file, read_bounded
from flint.tools.simulators.backends import Backend
from flint.tools.simulators.packets import PacketFiles

#: Files that it has open besides the traces.
_OTHER_FILES = 64
_WRITTEN = "flint capture MODEL -o DIR writes it; --{} FILE takes another"


@dataclass(frozen=True)
class Case:
    """One network on which traces are simulated, with the settings that go with it."""

    network: Path
    system: Path
    fabric: Fabric
    packets: PacketFiles | None = None  #: What a simulator of packets needs besides.


@dataclass(frozen=True)
class Inputs:
    """Traces, networks and what all runs share. `groups` is None where there is no such file."""

    traces: TraceSet
    cases: tuple[Case, ...]
    memory: Path
    groups: Path | None

    @property
    def ranks(self) -> int:
        """Ranks that have a trace, which is all."""
        return len(self.traces.paths)


def find_inputs(
    place: Path,
    networks: Sequence[Path] = (),
    system: Path | None = None,
    memory: Path | None = None,
    *,
    flat: bool = False,
) -> Inputs:
    """What belongs to the traces at `place`. Files that are not given are looked for beside them.

    Without `networks` these are all of network*.yml; with `flat` only those of one dimension.

    Raises FlintError FL601 to FL606 (traces), FL706 (a file of the simulator that cannot be read)
    and FL711 (files that are missing, or do not go with the traces or with each other).
    """
    traces = find_traces(place)
    _require_all_ranks(traces)
    found = list(networks) or sorted(traces.folder.glob("network*.yml"))
    if not found:
        raise _missing(traces.folder / "network.yml", "network")
    cases = [_case(path, system) for path in found]
    if flat and not networks:
        cases = [c for c in cases if len(c.fabric.sizes) == 1]
        if not cases:
            raise FlintError(
                "FL711",
                f"the congestion-aware simulator takes networks of one dimension, but {found[0].name} has several",
                place=str(found[0]),
                help="run the congestion-unaware one, or give a one-dimensional network: --network FILE",
            )
    for case in cases:
        _require_fit(case, traces)
    groups = traces.folder / (traces.group_file or "comm_group.json")
    memory = memory or traces.folder / "memory.json"
    _require_file(memory, "memory")
    return Inputs(traces, tuple(cases), memory, groups if traces.groups is not None else None)


def _case(network: Path, system: Path | None) -> Case:
    _require_file(network, "network")
    settings = system or settings_beside(network)
    _require_file(settings, "system")
    return Case(network, settings, read_fabric(network))


def _require_file(path: Path, option: str) -> None:
    if not is_file(path):
        raise _missing(path, option)
    read_bounded(path, FileKind.SIMULATOR, "FL706")


def _missing(path: Path, option: str) -> FlintError:
    near = nearest(str(path), list(Backend)) if option == "network" else ""
    return FlintError(
        "FL711",
        f"there is no file {path.name}, which ASTRA-sim needs{near}",
        place=str(path),
        help=_WRITTEN.format(option),
    )


def _require_all_ranks(traces: TraceSet) -> None:
    """Raise FlintError FL711 where a rank has no trace, or more would be open than may be."""
    missing = sorted(set(range(traces.world)) - set(traces.paths))
    if missing:
        raise FlintError(
            "FL711",
            f"{len(missing)} of {traces.world} ranks have no trace, the first is {missing[0]}",
            place=str(traces.folder),
            help="ASTRA-sim needs a trace for each rank; write all ranks",
        )
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and traces.world + _OTHER_FILES > most:
        raise FlintError(
            "FL711",
            f"ASTRA-sim opens {traces.world} traces at once, but only {most} open files are allowed",
            help=f"allow more: ulimit -Hn {traces.world + _OTHER_FILES}",
        )


def _require_fit(case: Case, traces: TraceSet) -> None:
    """Raise FlintError FL711 unless network, settings and traces are of the same size."""
    fabric, network = case.fabric, case.network
    if fabric.world != len(traces.paths):
        raise FlintError(
            "FL711",
            f"{network.name} is for {fabric.world} ranks, but {len(traces.paths)} have a trace",
            place=str(network),
            help="the product of npus_count must be the number of ranks",
        )
    system = read_system(case.system)
    given = system.all_reduce_implementation
    if given and len(given) != len(fabric.sizes):
        raise FlintError(
            "FL711",
            f"{case.system.name} is for {len(given)} dimensions, but {network.name} has {len(fabric.sizes)}",
            place=str(case.system),
            help="give the settings of this network: --system FILE",
        )


def lay_out(inputs: Inputs, case: Case, folder: Path) -> dict[str, str]:
    """Put what a run needs into its own folder, and give each option its value there.

    These are links under names of ours: ASTRA-sim ignores a path with "empty" in it. It opens traces
    for writing, so those that may not be written are copied.
    """
    prefix = inputs.traces.prefix
    traces = folder / "traces"
    first = next(iter(inputs.traces.paths.values()))
    if os.access(first, os.W_OK):
        traces.symlink_to(inputs.traces.folder.resolve(), target_is_directory=True)
    else:
        traces.mkdir()
        for path in inputs.traces.paths.values():
            shutil.copyfile(path, traces / path.name)
    files: dict[str, Path | None] = {
        "network-configuration": case.network,
        "system-configuration": case.system,
        "remote-memory-configuration": inputs.memory,
        "comm-group-configuration": inputs.groups,
    }
    options = {"workload-configuration": f"traces/{prefix}"}
    for option, file in files.items():
        if file is not None:
            (folder / f"{option}{file.suffix}").symlink_to(file.resolve())
            options[option] = f"{option}{file.suffix}"
    if case.packets is None:
        return options
    for name, text in case.packets.files.items():
        (folder / name).write_text(text)
    return {**options, **case.packets.options}
