"""Time `flint check` on many ranks and on one long rank.

    python benchmarks/check.py                    linked, named and long, one after another
    python benchmarks/check.py long --directory /data/scratch

`linked`: 32,768 ranks of examples/llama_jax.py, groups by dimension, hard links (2 MB). `named`: its
4,096 ranks with groups by name, a file each (2.5 GB). `long`: one rank of 1,000,000 nodes (0.1 GB).
Prints CPU seconds and the peak resident memory of the process that checks. Writes below --directory
(the system's temporary directory unless it is given) and removes what it wrote.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from flint.backends.chakra.schema import NodeType
from flint.backends.chakra.writing.encode import (
    field_bytes,
    integer_attribute,
    metadata_record,
    text_attribute,
    varint,
)

ROOT = Path(__file__).resolve().parents[1]
LLAMA = str(ROOT / "examples" / "llama_jax.py")
CAPTURES = {
    "linked": ["--mesh", "4096x8", "--groups", "dims", "--link"],
    "named": ["--mesh", "512x8"],
}
LONG_NODES = 1_000_000


def write_long(folder: Path) -> None:
    """One rank of LONG_NODES: of every eight one is a collective over the rank and another."""
    folder.mkdir()
    (folder / "comm_group.json").write_text('{"1":[0,1]}\n')
    with (folder / "trace.0.et").open("wb") as file:
        file.write(metadata_record({"producer": "benchmarks/check.py"}))
        for node in range(LONG_NODES):
            body = _node(node)
            file.write(varint(len(body)) + body)
    os.link(folder / "trace.0.et", folder / "trace.1.et")


def _node(node: int) -> bytes:
    """Waits for the node before it and for one four before."""
    kind = NodeType.COMP if node % 8 else NodeType.COMM_COLL
    deps = b"".join(varint(d) for d in (node - 4, node - 1) if d >= 0)
    body = b"\x08" + varint(node) if node else b""
    body += field_bytes(2, f"node of layer {node % 64}".encode()) + b"\x18" + varint(kind)
    body += field_bytes(5, deps) if deps else b""
    numbers = {"num_ops": "int64_val", "tensor_size": "uint64_val"}
    if kind is NodeType.COMM_COLL:
        numbers = {"comm_type": "int64_val", "comm_size": "int64_val"}
        body += field_bytes(10, text_attribute("pg_name", "1"))
    for name, stored in numbers.items():
        value = 0 if name == "comm_type" else 1 + node % 512
        body += field_bytes(10, integer_attribute(name, stored, value))
    return body


def measure(folder: Path) -> str:
    """CPU seconds and peak memory of `flint check`, and its last line."""
    command = [sys.executable, "-m", "flint", "check", "--quiet", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read().strip().splitlines()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return f"{cpu:>7.2f} {peak:>9.0f}  {said[-1] if said else process.returncode}"


def main() -> None:
    """Parse arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = (*CAPTURES, "long")
    parser.add_argument("cases", nargs="*", choices=[*names, []], help="linked, named, long")
    parser.add_argument("--directory", type=Path, help="where to write")
    options = parser.parse_args()
    print(f"{'case':<7} {'CPU s':>7} {'peak MiB':>9}")
    for name in options.cases or names:
        with tempfile.TemporaryDirectory(prefix="flint-check-", dir=options.directory) as place:
            folder = Path(place) / "traces"
            if name == "long":
                write_long(folder)
            else:
                flint = [sys.executable, "-m", "flint", "capture", LLAMA, *CAPTURES[name]]
                subprocess.run([*flint, "-o", str(folder), "--quiet"], check=True, stdout=-3)
            print(f"{name:<7} {measure(folder)}", flush=True)


if __name__ == "__main__":
    main()
