"""What a written directory looks like, as text: nodes of three ranks and the files beside them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from flint.backends.chakra import TraceFile, check, read, write
from flint.ir.workload import Workload
from tests.chakra_traces import layered_program


def trace_text(trace: TraceFile) -> str:
    lines = [f"version {trace.version}, {trace.metadata}"]
    for node in trace.nodes:
        values = " ".join(f"{n}:{k}={v}" for n, (k, v) in node.attributes.items())
        deps = ",".join(map(str, node.data_deps)) or "-"
        lines.append(f"{node.id} {node.type.name} [{node.name}] after {deps} {values}")
    return "\n".join(lines)


def test_directory(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(Workload.single(layered_program(layers=2)), out)
    parts = [f"== {n}\n{(out / n).read_text()}" for n in sorted(p.name for p in out.glob("*.json"))]
    parts += [f"== {n}\n{(out / n).read_text()}" for n in ("network.yml", "README.txt")]
    for rank in (0, 3, 7):
        parts.append(f"== rank {rank}\n{trace_text(read(out / f'trace.{rank}.et'))}\n")
    golden("chakra/directory.txt", _without_digests("\n".join(parts)))


def _without_digests(text: str) -> str:
    """Bytes of .flint files depend on the version of zlib."""
    text = re.sub(r'("workload.flint", "size_bytes": )\d+', r"\1...", text)
    return re.sub(r'"(sha256:)?[0-9a-f]{64}"', r'"\1..."', text)


def test_findings_read_well(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    """A trace of rank 5 from another program: every sentence that this causes."""
    out = tmp_path / "out"
    write(Workload.single(layered_program(layers=2)), out)
    write(Workload.single(layered_program(layers=1)), tmp_path / "other")
    (out / "trace.5.et").write_bytes((tmp_path / "other" / "trace.5.et").read_bytes())
    (out / "trace.6.et").unlink()
    golden("chakra/findings.txt", "\n".join(map(str, check(out).findings)) + "\n")
