"""Make, check and pack the workloads of gallery.toml.

    python -m gallery -o DIR                 # all of them, and DIR/gallery.zip
    python -m gallery -o DIR NAME...         # some of them, without an archive
    python -m gallery -o DIR --update        # write gallery.lock and table.md anew

Each is captured, verified and held against gallery.lock; one of up to 64 devices is also written as traces,
which are checked. A name is made in a process of its own, so that no script sees what another left. Exits
with 1 if a workload is not what the lock says. `flint export NAME.flint -f chakra -o TRACES` makes traces of it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flint.backends.chakra import check
from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.simulate.layers import untimed_nodes
from flint.capturing import capture
from flint.requests.capture import CaptureRequest
from flint.text import format_bytes, format_count, format_flops
from flint.tools.change.project.config import request_from
from flint.tracing import Trace

HERE = Path(__file__).parent
ROOT = HERE.parent
LOCK, TABLE = HERE / "gallery.lock", HERE / "table.md"
ARCHIVE = "gallery.zip"
#: Traces of up to so many devices are written and checked.
MOST_CHECKED = 64
#: What stands above the table.
_INTRODUCTION = """# The gallery

Workloads of public models, each a small file from which `flint export FILE -f chakra -o DIR` makes traces. `python -m gallery -o DIR`
makes them all, checks them against `gallery.lock` and packs them. Sizes are from what the last but one column names; no weights are read.
The last column is the licence under which the model is published; the files are under Flint's own. Bytes are those that a device puts
into collectives and messages, of up to four groups of axes; FLOPs are those of the rank that has most.
"""
_DATE = (1980, 1, 1, 0, 0, 0)


def workloads() -> dict[str, dict[str, Any]]:
    """The tables of gallery.toml by name."""
    found = tomllib.loads((HERE / "gallery.toml").read_text(encoding="utf-8"))
    return dict(found["workload"])


def made(table: Mapping[str, Any]) -> Trace:
    """The workload that a table means."""
    placed = {**table, "model": str(ROOT / table["model"])}
    return capture(request_from(CaptureRequest, placed))


def entry(trace: Trace, table: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """What lock and table say of a workload."""
    workload = trace.workload
    largest = max(trace.summary().classes, key=lambda c: c.flops)
    by_axes: dict[str, int] = {}
    for c in largest.collectives:
        by_axes[c.over] = by_axes.get(c.over, 0) + c.comm_bytes
    kernels = untimed_nodes(workload, "kernel", None)
    nodes = max(len(expand(p)) for p in kernels.programs)
    framework = "PyTorch" if Path(table["model"]).stem.startswith("torch") else "JAX"
    return {
        "sha256": content_hash(file.read_bytes()),
        "mesh": dict(workload.mesh.shape),
        "devices": workload.mesh.size,
        "classes": len(workload.classes),
        "flops_per_device": largest.flops,
        "comm_bytes_by_axes": dict(sorted(by_axes.items(), key=lambda item: -item[1])),
        "nodes_per_rank": nodes,
        "file_bytes": file.stat().st_size,
        "framework": framework,
        "made_with": version({"JAX": "jax", "PyTorch": "torch"}[framework]).partition("+")[0],
        **table["about"],
    }


def content_hash(data: bytes) -> str:
    """A digest of what the file holds, whatever version of zlib packed it."""
    found = hashlib.sha256()
    for name, content in _members(data):
        found.update(f"{name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in sorted(archive.namelist()):
            content = archive.read(name)
            yield from _members(content) if name.endswith(".npz") else [(name, content)]


def make(name: str, folder: Path) -> dict[str, Any]:
    """Capture, check and save one workload; its entry of the lock."""
    table = workloads()[name]
    trace = made(table)
    trace.workload.verify()
    file = folder / f"{name}.flint"
    trace.workload.save(file, force=True)
    if trace.mesh.size <= MOST_CHECKED:
        with tempfile.TemporaryDirectory() as traces:
            trace.save(Path(traces) / name, link=True)
            report = check(Path(traces) / name)
        if not report.ok:
            raise SystemExit(f"{name}: {report.findings[0]}")
    return entry(trace, table, file)


def _in_a_process(name: str, folder: Path) -> dict[str, Any] | None:
    run = [sys.executable, "-m", "gallery", "--one", "-o", str(folder), name]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} was not made:\n{done.stderr[-2000:]}", flush=True)
        return None
    return dict(json.loads(done.stdout.splitlines()[-1]))


def different(name: str, found: Mapping[str, Any], locked: Mapping[str, Any]) -> str:
    """What is not as in the lock, "" if nothing is. Versions of zlib make files longer or shorter."""
    keys = [k for k in {**found, **locked} if k != "file_bytes" and found.get(k) != locked.get(k)]
    return f"{name}: {', '.join(keys)}" if keys else ""


def table_text(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of the gallery, in Markdown."""
    titles = (
        "workload",
        "kind",
        "step",
        "in",
        "mesh",
        "FLOPs per device",
        "bytes per device by axes",
    )
    lines = [
        _INTRODUCTION,
        "| " + " | ".join((*titles, "nodes per rank", "file", "sizes from", "licence")) + " |",
        "|" + "---|" * 5 + "--:|" + "---|" + "--:|--:|" + "---|---|",
    ]
    for name, e in entries.items():
        mesh = " x ".join(f"{axis}={size}" for axis, size in e["mesh"].items())
        sent = ", ".join(
            f"{a} {format_bytes(b)}" for a, b in list(e["comm_bytes_by_axes"].items())[:4]
        )
        cells = (
            name,
            e["kind"],
            e["step"],
            e["framework"],
            mesh,
            format_flops(e["flops_per_device"]),
        )
        rest = (format_count(e["nodes_per_rank"]), format_bytes(e["file_bytes"]))
        lines.append(
            "| " + " | ".join((*cells, sent or "none", *rest, e["source"], e["licence"])) + " |"
        )
    return "\n".join(lines) + "\n"


def pack(folder: Path, names: Sequence[str]) -> Path:
    """One archive of the files, the lock and the table; equal files give equal archives."""
    archive = folder / ARCHIVE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as out:
        for file in [*(folder / f"{name}.flint" for name in names), LOCK, TABLE]:
            out.writestr(zipfile.ZipInfo(file.name, _DATE), file.read_bytes())
    return archive


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="gallery", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--update", action="store_true", help="write the lock and the table anew")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in workloads()]:
        parser.error(f"gallery.toml has no {', '.join(unknown)}")
    options.output.mkdir(parents=True, exist_ok=True)
    if options.one:
        print(json.dumps(make(options.names[0], options.output)))
        return 0
    names = options.names or list(workloads())
    locked = json.loads(LOCK.read_text(encoding="utf-8")) if LOCK.exists() else {}
    found: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    failed: list[str] = []
    for name in names:
        one = _in_a_process(name, options.output)
        if one is None:
            failed.append(name)
            continue
        found[name] = one
        wrong += filter(None, [different(name, one, locked.get(name, {}))])
        size = format_bytes(found[name]["file_bytes"])
        print(f"{name}: {size}, {format_count(found[name]['nodes_per_rank'])} nodes", flush=True)
    if options.update:
        locked = {n: e for n in workloads() if (e := found.get(n) or locked.get(n))}
        LOCK.write_text(json.dumps(locked, indent=1) + "\n", encoding="utf-8")
        TABLE.write_text(table_text(locked), encoding="utf-8")
    elif wrong:
        print("not as in gallery.lock:", *wrong, sep="\n")
        return 1
    if failed:
        return 1
    if not options.names:
        archive = pack(options.output, names)
        print(f"{archive}: {format_bytes(archive.stat().st_size)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
