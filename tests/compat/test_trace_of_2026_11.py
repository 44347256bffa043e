"""A trace written in November 2026 is still read, and the writer still writes the same bytes.

When the format must change, add a file of the new date beside the old one, which stays readable;
only the byte comparison moves to the new file.
"""

from __future__ import annotations

from pathlib import Path

from flint.backends.chakra import read, write
from flint.ir.workload import Workload
from tests.chakra_traces import layered_program

KEPT = Path(__file__).parent / "data" / "layered-2026-11-21.et"


def test_is_still_read() -> None:
    trace = read(KEPT)
    assert (trace.version, trace.metadata["mesh"]) == ("1.0.0", "data=4,model=2")
    assert [node.id for node in trace.nodes] == list(range(16))
    assert trace.nodes[1].attributes["pg_name"] == ("string_val", "2")


def test_is_still_written(tmp_path: Path) -> None:
    write(Workload.single(layered_program()), tmp_path / "out", ranks="2")
    assert (tmp_path / "out" / "trace.2.et").read_bytes() == KEPT.read_bytes()
