"""Everything that Flint gives for one captured program; `same_outputs.py` runs it, once a case.

    python -P benchmarks/same_outputs_worker.py FILE.zip CHECKOUT SCRATCH all|some PROGRAM OPTIONS...

Captures PROGRAM twice with the command, in processes of their own: operations of one rank of each
class, and kernels of all ranks. The rest is made in this process from the workload that the second
capture has kept. `all` estimates each profile on each cluster, `some` each profile on two clusters
and one profile on the others. Without a PROGRAM: help, clusters and messages for unusable input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import json
import math
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Of larger meshes, one rank of each class is written.
MOST_RANKS = 8
#: Graphs and explanations are made of the programs of so many classes.
MOST_CLASSES = 2
#: Where there are timelines, policies, and all profiles of every program.
TIMELINES = ("h100-dgx", "v5p")
#: What a run took is another number each time.
TIMES = (
    (rb'(_seconds": )[\d.e-]+', rb"\g<1>0"),
    (rb"(?m)^time .*$", b"time ?"),
    (rb"(\]:[EIW])\d{4} [\d:.]+ \d+ ", rb"\1 "),  # PyTorch's log: when, and which process
)
#: The kept workload is compared by what it says, so its size may differ. Digests are of files that
#: are outputs themselves, and `check` proves them.
OF_MANIFESTS = (
    (rb'("name": "workload.flint", "size_bytes": )\d+', rb"\g<1>0"),
    (rb'("(?:digest|sha256)": )"[^"]*"', rb'\1""'),
)
ERRORS = (
    "capture llama_jax.py:tran --mesh 4x2",
    "capture llama_jax.py",
    "capture llama_jax.py --mesh 4x2x2",
    "capture llama_jax.py --mesh 4xtwo",
    "capture llama_jax.py --mesh 3x2 --set parallel=nothing",
    "capture llama_jax.py --mesh 4x2 --set widht=3",
    "capture llama_jax.py --mesh 4x2 --profile gcc",
    "capture nowhere.py --mesh 4x2",
    "capture README.md --mesh 4x2",
    "check nowhere",
    "estimate nowhere -c h100-dgx",
    "estimate llama_jax.py -c h100-dgx",
    "explain nowhere",
    "clusters show h101-dgx",
)


@dataclass(frozen=True)
class Outputs:
    """Outputs of a case as entries of a zip, without what belongs to the machine."""

    archive: zipfile.ZipFile
    places: tuple[tuple[str, str], ...]

    def add(self, name: str, content: str | bytes) -> None:
        """Add one output."""
        data = content.encode() if isinstance(content, str) else content
        if not name.endswith((".et", ".pftrace")):
            for place, stands_for in self.places:
                data = data.replace(place.encode(), stands_for.encode())
            for pattern, put in TIMES:
                data = re.sub(pattern, put, data)
        self.archive.writestr(name, data, zipfile.ZIP_DEFLATED)

    def made(self, name: str, make: Callable[[], str]) -> bool:
        """Add what `make` returns, or the error that it raises; returns whether it is there."""
        import flint

        try:
            text = make()
        except flint.FlintError as error:
            self.add(name, f"refused\n{error}\n")
        except Exception as error:  # noqa: BLE001  a bug of that version: its outputs show it
            self.add(name, f"raised\n{type(error).__name__}: {error}\n")
        else:
            self.add(name, text)
            return True
        return False

    def add_files(self, name: str, directory: Path) -> None:
        """Add what a directory of traces holds; the workload is an output of its own."""
        for file in sorted(directory.glob("*")):
            data = file.read_bytes()
            if file.suffix == ".flint":
                continue
            if file.name == "manifest.json":
                for pattern, put in OF_MANIFESTS:
                    data = re.sub(pattern, put, data)
            self.add(f"{name}/{file.name}", data)


# The command -------------------------------------------------------------------------------------


def flint_here(*arguments: object) -> str:
    """What the command prints, run in this process."""
    from flint.cli import app

    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(list(map(str, arguments)), prog_name="flint")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return _said(status, out.getvalue(), err.getvalue())


def flint_apart(*arguments: object) -> str:
    """What the command prints, run in a process of its own."""
    command = [sys.executable, "-P", "-m", "flint", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return _said(done.returncode, done.stdout, done.stderr)


def _said(status: int, out: str, err: str) -> str:
    """Results alone, or with the exit status and what stderr got, if there was anything else."""
    return out if not (status or err) else f"exit {status}\n{out}--- stderr\n{err}"


# What is recorded --------------------------------------------------------------------------------


def record_commands(outputs: Outputs) -> None:
    """Help of every command, every cluster, and what unusable input is answered."""
    names = ("capture", "estimate", "check", "explain", "export", "clusters")
    for command in ((), *((n,) for n in names), ("clusters", "list"), ("clusters", "show")):
        outputs.add(f"help/{'-'.join(('flint', *command))}.txt", flint_here(*command, "--help"))
    outputs.add("clusters.txt", flint_here("clusters", "list"))
    for cluster in clusters():
        outputs.add(f"clusters/{cluster}.txt", flint_here("clusters", "show", cluster))
        outputs.add(f"clusters/{cluster}.json", flint_here("clusters", "show", cluster, "--json"))
    for line in ERRORS:
        outputs.add(f"errors/{line}.txt", flint_here(*line.split()))


def record_program(
    outputs: Outputs, scratch: Path, arguments: list[str], *, everywhere: bool
) -> None:
    """Captures of a program, and all that is made of the workload."""
    import flint

    if not capture(outputs, scratch, arguments):
        return
    traces, workload = scratch / "kernel", scratch / "kernel" / "workload.flint"
    trace = flint.Trace(flint.Workload.load(workload))
    outputs.add("workload.json", meaning(trace.workload))
    for name in ("check", "explain"):
        record_command(outputs, name, traces)
    record_graphs(outputs, trace.workload, workload)
    record_estimates(outputs, flint.Trace(flint.Workload.load(workload)), everywhere=everywhere)
    record_estimate_commands(outputs, traces)
    record_traces(outputs, scratch, trace)


def capture(outputs: Outputs, scratch: Path, arguments: list[str]) -> bool:
    """Capture twice; returns whether there is a workload."""
    options = ["--ranks", "classes"] if _devices(arguments) > MOST_RANKS else []
    operations = ["-o", scratch / "op", "--granularity", "op", "--ranks", "classes"]
    kernels = ["-o", scratch / "kernel", "--json", *options]
    outputs.add("capture.txt", flint_apart("capture", *operations, *arguments))
    outputs.add("capture.json", flint_apart("capture", *kernels, *arguments))
    for granularity in ("op", "kernel"):
        outputs.add_files(f"traces/{granularity}", scratch / granularity)
    kept = [scratch / g / "workload.flint" for g in ("op", "kernel")]
    if not all(file.is_file() for file in kept):
        return False
    same = kept[0].read_bytes() == kept[1].read_bytes()
    outputs.add("captures.txt", f"both captures kept the same bytes: {same}\n")
    return True


def _devices(arguments: list[str]) -> int:
    mesh = arguments[arguments.index("--mesh") + 1]
    return math.prod(int(size.rpartition("=")[2]) for size in re.split("[x,]", mesh))


def record_command(outputs: Outputs, name: str, path: Path, *options: object) -> None:
    """Text and JSON of a command."""
    outputs.add(f"{name}.txt", flint_here(name, path, *options))
    outputs.add(f"{name}.json", flint_here(name, path, *options, "--json"))


def record_graphs(outputs: Outputs, workload: Any, path: Path) -> None:
    """Explanations and graphs of a rank of the first and of the last classes."""
    found = workload.class_of_ranks().tolist()
    ranks = sorted({found.index(c) for c in sorted(set(found))[-MOST_CLASSES:]} | {0})
    for rank in ranks:
        at = ("--rank", rank)
        for form in ("json", "graphml", "dot"):
            outputs.add(f"export/{rank}.{form}", flint_here("export", path, "-f", form, *at))
        for name, options in EXPLAINED.items():
            outputs.add(f"explain/{rank}/{name}", flint_here("explain", path, *options, *at))


EXPLAINED = {
    "list.json": ("--json",),
    "0.txt": ("--collective", "0"),
    "3.txt": ("--collective", "3"),
    "scopes.txt": ("--scope", "*"),
    "scopes.json": ("--scope", "*", "--json"),
}


def record_estimates(outputs: Outputs, trace: Any, *, everywhere: bool) -> None:
    """Estimates for each profile on each cluster, and for each policy on two of them."""
    for cluster in clusters():
        names = profiles() if everywhere or cluster in TIMELINES else []
        for profile in (None, *names):
            name = f"estimate/{cluster}/{profile or 'default'}"
            record_estimate(outputs, name, trace, cluster, profile=profile)
    for cluster in TIMELINES:
        for policy in policies():
            name = f"estimate/{cluster}/policy-{policy}"
            record_estimate(outputs, name, trace, cluster, policy=policy)


def record_estimate(
    outputs: Outputs, name: str, trace: Any, cluster: str, **options: str | None
) -> None:
    """Text and JSON of an estimate; if something has no price, also with that as nothing."""

    def both(**more: bool) -> str:
        found = trace.estimate(cluster, **options, **more)
        document = {"text": found.to_text(verbose=True).split("\n"), "json": found.to_json()}
        return json.dumps(document, indent=0)

    if not outputs.made(f"{name}.json", both):
        outputs.made(f"{name}-unpriced.json", lambda: both(unpriced_is_zero=True))


def record_estimate_commands(outputs: Outputs, traces: Path) -> None:
    """The command's text, JSON and timeline, and ASTRA-sim's rules on the written traces."""
    for cluster in TIMELINES:
        name, at = f"estimate-{cluster}", ("-c", cluster, "--unpriced", "zero")
        outputs.add(f"{name}.txt", flint_here("estimate", traces, *at))
        outputs.add(f"{name}-verbose.txt", flint_here("estimate", traces, *at, "-v"))
        outputs.add(f"{name}.json", flint_here("estimate", traces, *at, "--json", "-q"))
        timeline = traces.parent / f"{cluster}.pftrace"
        drawn = flint_here("estimate", traces, *at, "--perfetto", timeline, "--class", "all", "-q")
        outputs.add(f"{name}-perfetto.txt", drawn)
        if timeline.is_file():
            outputs.add(f"{name}.pftrace", timeline.read_bytes())
    network = ("-c", traces / "network.yml", "--overlap", "astra-sim")
    outputs.add("estimate-astra-sim.txt", flint_here("estimate", traces, *network))
    outputs.add("estimate-astra-sim.json", flint_here("estimate", traces, *network, "--json"))


def record_traces(outputs: Outputs, scratch: Path, trace: Any) -> None:
    """Traces of one rank a class: for each profile as it rewrites, with durations of clusters."""

    def save(name: str, make: Callable[[], Any], **options: object) -> None:
        directory = scratch / name.replace("/", "-")

        def written() -> str:
            report = make().save(directory, ranks="classes", **options)
            return json.dumps(plain(report.nodes), indent=0)

        outputs.made(f"{name}.json", written)
        outputs.add_files(name, directory)

    for profile in profiles():
        for granularity in ("op", "kernel"):
            name = f"traces/{profile}-{granularity}"
            save(name, lambda p=profile: trace.rewritten(p), granularity=granularity)
    for cluster in clusters():
        save(f"traces/{cluster}", lambda: trace, cluster=cluster, unpriced_is_zero=True)


# What a workload says ----------------------------------------------------------------------------


def meaning(workload: Any) -> str:
    """A workload as JSON, each column of rows by its name with readable values."""
    document = {
        "mesh": plain(workload.mesh),
        "classes": plain(workload.classes),
        "metadata": plain(workload.metadata),
        "class_of_ranks": workload.class_of_ranks().tolist(),
        "programs": [_program(p) for p in workload.programs],
    }
    return json.dumps(document, separators=(",", ":"))


def _program(program: Any) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {}
    for number in range(len(program)):
        for name, value in fields_of(program.row(number)):
            columns.setdefault(name, []).append(plain(value))
    return {
        "regions": plain(program.regions),
        "trips": program.trips.tolist(),
        "rows": columns,
    }


def fields_of(value: Any) -> Iterable[tuple[str, Any]]:
    """Names and values of a named tuple or of a dataclass."""
    if dataclasses.is_dataclass(value):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return list(value._asdict().items())


def plain(value: Any) -> Any:
    """As JSON has it; members of enumerations by name."""
    if isinstance(value, enum.Flag):
        return sorted(f.name or "" for f in type(value) if f in value)
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if dataclasses.is_dataclass(value) or hasattr(value, "_asdict"):
        return {name: plain(v) for name, v in fields_of(value)}
    if hasattr(value, "items"):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value]


# Names, from the command -------------------------------------------------------------------------


def clusters() -> list[str]:
    """Those that come with this version."""
    return [c["name"] for c in json.loads(flint_here("clusters", "list", "--json"))["clusters"]]


def profiles() -> list[str]:
    """Target profiles, of the help of `flint estimate`."""
    return _listed("--profile NAME", "kernels: ", " (default")


def policies() -> list[str]:
    """When communication begins, of the same help; astra-sim is for written traces."""
    return [p for p in _listed("--overlap NAME", "begins: ", " (default") if p != "astra-sim"]


def _listed(option: str, begin: str, end: str) -> list[str]:
    """Names that the help of an option enumerates between two texts."""
    text = " ".join(flint_here("estimate", "--help").split())
    found = re.search(f"{re.escape(option)} .*?{begin}(.*?){re.escape(end)}", text)
    if found is None:
        raise SystemExit(f"the help of flint estimate does not list the names of {option}")
    return found[1].split(", ")


def main() -> None:
    """Record one case."""
    file, tree, scratch, how_many, *arguments = sys.argv[1:]
    import flint

    if not Path(flint.__file__).resolve().is_relative_to(tree):
        raise SystemExit(f"flint is imported from {flint.__file__}, not from {tree}")
    program = Path(tree, arguments[0] if arguments else "examples/llama_jax.py")
    os.chdir(program.parent)
    places = ((scratch, "<scratch>"), (tree, "<tree>"), (sys.prefix, "<python>"))
    with zipfile.ZipFile(file, "w") as archive:
        outputs = Outputs(archive, places)
        if arguments:
            words, everywhere = [program.name, *arguments[1:]], how_many == "all"
            record_program(outputs, Path(scratch), words, everywhere=everywhere)
        else:
            record_commands(outputs)


if __name__ == "__main__":
    main()
