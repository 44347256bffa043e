"""What both scripts measure and write: put into them as they are written, so that each is one file."""

from __future__ import annotations

import argparse
import csv
import datetime
import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

# BEGIN
Row = dict[str, Any]
COLUMNS = [
    "kind",
    "dtype",
    "batch",
    "m",
    "n",
    "k",
    "layout",
    "heads",
    "kv_heads",
    "queries",
    "keys",
    "head_dim",
    "causal",
    "rows",
    "columns",
    "elements",
    "reads",
    "collective",
    "bytes",
    "ranks",
    "nodes",
    "median_us",
]


def products(quick: bool) -> list[Row]:
    """Sizes and layouts of products: of decoding, of layers, of long sequences."""
    if quick:
        return [
            {"kind": "gemm", "batch": 1, "m": m, "n": 64, "k": 64, "layout": "nn"} for m in (16, 64)
        ]
    m = (1, 16, 64, 256, 1024, 4096, 16384)
    nk = ((1024, 1024), (4096, 4096), (4096, 14336), (14336, 4096), (1536, 8192), (8192, 8192))
    found = [
        {"kind": "gemm", "batch": 1, "m": a, "n": n, "k": k, "layout": "nt"}
        for a, (n, k) in itertools.product(m, nk)
    ]
    found += [
        {"kind": "gemm", "batch": 1, "m": 4096, "n": 4096, "k": 4096, "layout": x}
        for x in ("nn", "tn")
    ]
    return found + [
        {"kind": "gemm", "batch": b, "m": 512, "n": 512, "k": 64, "layout": "nn"} for b in (16, 128)
    ]


def attention(quick: bool) -> list[Row]:
    """Prefill with a causal mask, and decoding of one query a sequence."""
    if quick:
        return [
            {
                "kind": "attention",
                "batch": 1,
                "heads": 2,
                "kv_heads": 2,
                "queries": 32,
                "keys": 32,
                "head_dim": 16,
                "causal": 1,
            }
        ]
    found = []
    for head_dim, (heads, kv_heads) in itertools.product((64, 128), ((32, 32), (32, 8))):
        for batch, length in ((1, 512), (1, 2048), (1, 8192), (8, 1024), (4, 4096)):
            found.append(
                {
                    "kind": "attention",
                    "batch": batch,
                    "heads": heads,
                    "kv_heads": kv_heads,
                    "queries": length,
                    "keys": length,
                    "head_dim": head_dim,
                    "causal": 1,
                }
            )
        for batch, keys in ((1, 1024), (16, 1024), (16, 8192), (64, 4096)):
            found.append(
                {
                    "kind": "attention",
                    "batch": batch,
                    "heads": heads,
                    "kv_heads": kv_heads,
                    "queries": 1,
                    "keys": keys,
                    "head_dim": head_dim,
                    "causal": 0,
                }
            )
    return found


def others(quick: bool) -> list[Row]:
    """Rows (softmax, norm, sum) and elements (add, copy), from a launch to many megabytes."""
    rows = (16,) if quick else (64, 1024, 16384)
    columns = (64,) if quick else (128, 1024, 8192)
    found = [
        {"kind": kind, "rows": r, "columns": c}
        for kind, r, c in itertools.product(("softmax", "norm", "reduction"), rows, columns)
    ]
    for elements in (1024,) if quick else (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 28):
        found += [
            {"kind": "add", "elements": elements, "reads": 2},
            {"kind": "elementwise", "elements": elements, "reads": 1},
            {"kind": "copy", "elements": elements, "reads": 1},
        ]
    return found


def cases(quick: bool, dtypes: Iterable[str]) -> list[Row]:
    """All that is measured, each with its type."""
    rows = products(quick) + attention(quick) + others(quick)
    return [dict(row, dtype=dtype) for dtype, row in itertools.product(dtypes, rows)]


def state_of_gpu() -> str:
    """Clocks, power and temperature as the driver has them; "" without one that tells."""
    asked = (
        "clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu,persistence_mode"
    )
    for command in (
        ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"],
        ["rocm-smi", "--showclocks", "--showpower", "--csv"],
    ):
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return done.stdout.strip().splitlines()[0][:300]
    return ""


def arguments(text: str) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("-o", "--output", required=True, help="CSV to write, for flint calibrate")
    parser.add_argument("--device", default="", help="cpu, to try the script (default: the GPU)")
    parser.add_argument("--dtypes", default="bf16,f32", help="bf16, f16 or f32")
    parser.add_argument("--quick", action="store_true", help="only a few small sizes")
    parser.add_argument("--seconds", type=float, default=0.2, help="time limit of each size")
    parser.add_argument("--cold", action="store_true", help="empty the L2 between runs")
    return parser.parse_args()


def write(path: str, rows: Iterable[Row], said: Iterable[str]) -> None:
    """The table, after lines on what it was measured with. A file that is there is kept."""
    with open(path, "x", newline="") as file:
        file.writelines(f"# {line}\n" for line in said)
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def run_all(
    found: list[Row], time_of: Callable[[Row], list[float]], said: list[str], output: str
) -> None:
    """Measure each size, say how far it is, and write what there is even after Ctrl-C."""
    rows = []
    try:
        for at, row in enumerate(found):
            try:
                times = time_of(row)
            except Exception as error:  # noqa: BLE001 - a size that does not fit ends only itself
                print(f"{row}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            rows.append(dict(row, median_us=f"{statistics.median(times) * 1e6:.4f}"))
            print(f"{at + 1} of {len(found)}", end="\r", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped: what was measured is kept", file=sys.stderr)
    said.append(f"after: {state_of_gpu() or 'no driver tells clocks and power'}")
    said.append(f"measured {datetime.date.today()}")
    write(output, rows, said)
    print(f"wrote {len(rows)} rows to {output}", file=sys.stderr)
