"""Whether two versions of Flint give the same outputs: record both, then compare.

    python -m benchmarks.same_outputs record before --tree ../older-checkout
    python -m benchmarks.same_outputs record after
    python -m benchmarks.same_outputs compare before after

`record` runs the Flint of a checkout (this one, or --tree; the programs captured are that
checkout's too) over every example on small meshes and a few large ones, captures each twice, and
writes what it gives in every form: summaries, traces of operations and kernels for each profile
and cluster, estimates for each profile on each cluster, timelines, checks, explanations, graphs,
and messages of what it refuses. `--only PATTERN` records the cases whose names match
(`llama_jax*`) and keeps the others that are there; `list` shows the names. Times and paths of the
machine are left out. A workload file is recorded as what it says of each row, in columns by name,
so that columns which only the second recording has are no difference.

`compare` prints one paragraph for all outputs that first differ in the same place, and exits with
1 if one is not in `benchmarks/data/same_outputs.toml`:

    [[allow]]
    outputs = "*/estimate/*"        # names of outputs, * stands for anything
    where = "critical_path.*"       # places in them, as printed; default: anywhere
    reason = "why they differ on purpose"

Only the public surface is used (the command, and what `flint` exports), as modules move between
versions. See same_outputs_worker.py for what is recorded, and same_outputs_compare.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("same_outputs_worker.py")
INDEX = "index.json"
#: A case takes about 10 s; the longest a minute on a loaded machine.
MOST_SECONDS = 900

#: Name of a case, and what `flint capture` is given: the program first, from the checkout. Each
#: profile is estimated on each cluster for names without "-", which stands before a variant.
CASES = {
    "decode_jax": "examples/decode_jax.py --mesh 2x4 --set model=8b --set num_layers=2 "
    "--set tokens=3",
    "decode_jax-int8": "examples/decode_jax.py --mesh 2x4 --set model=8b --set num_layers=2 "
    "--set cache=int8 --set layers=unrolled",
    "decode_jax-large": "examples/decode_jax.py --mesh 8x8",
    "disaggregated_jax": "examples/disaggregated_jax.py --mesh pool=4,data=1,model=2 "
    "--set num_layers=2",
    "disaggregated_jax-reshard": "examples/disaggregated_jax.py --mesh pool=2,major=2,minor=2 "
    "--set prefill_tp=major+minor --set decode_tp=minor --set num_layers=2",
    "gpt3_jax": "examples/gpt3_jax.py --mesh pipe=2,data=2,model=2 --microbatches 4 "
    "--set num_layers=4 --set model=6.7b",
    "gpt3_jax-chunks": "examples/gpt3_jax.py --mesh pipe=2,data=1,model=4 --microbatches 4 "
    "--set num_layers=8 --set chunks=2 --set remat=selective --set gradient_dtype=float32",
    "llama_jax": "examples/llama_jax.py --mesh 4x2 --set num_layers=2",
    "llama_jax-large": "examples/llama_jax.py --mesh 64x8",
    "llama_jax-tp-sp": "examples/llama_jax.py --mesh 64x8 --set model=70b "
    "--set parallel=fsdp+tp+sp --groups dims",
    "llama_jax-unrolled": "examples/llama_jax.py --mesh 2x4 --set num_layers=2 "
    "--set layers=unrolled --set remat=none --tensor-size output --link",
    "llama_jax-xla": "examples/llama_jax.py --mesh 4x2 --set num_layers=2 --partitioner xla",
    "llama_jax-profile": "examples/llama_jax.py --mesh 4x2 --set num_layers=2 "
    "--set parallel=fsdp+tp+sp --profile xla-gpu",
    "llama_jax-pipelined": "examples/llama_jax.py:pipelined --mesh pipe=2,data=2,model=2 "
    "--schedule 1f1b --microbatches 4 --set num_layers=4",
    "llama_jax-zb-h1": "examples/llama_jax.py:pipelined --mesh pipe=4,data=2,model=1 "
    "--schedule zb-h1 --microbatches 4 --set num_layers=4 --set parallel=fsdp+tp+sp",
    "mixtral_jax": "examples/mixtral_jax.py --mesh 4x2 --set num_layers=2",
    "mixtral_jax-einsum": "examples/mixtral_jax.py --mesh 64x8 --set dispatch=einsum "
    "--set num_layers=2",
    "resnet50_jax": "examples/resnet50_jax.py --mesh 4x2",
    "resnet50_jax-spatial": "examples/resnet50_jax.py --mesh 4x2 --set spatial=true",
    "ring_attention_jax": "examples/ring_attention_jax.py --mesh 2x4",
    "spmd_pipeline_jax": "examples/spmd_pipeline_jax.py --mesh 4x2 --set num_layers=8 "
    "--set seq=256 --set microbatches=3",
    "torch_llama": "examples/torch_llama.py --mesh 4x2 --set num_layers=2",
    "torch_llama-tp-sp": "examples/torch_llama.py --mesh 64x8 --set num_layers=2 "
    "--set parallel=fsdp+tp+sp",
    "torch_llama-cut": "examples/torch_llama.py --mesh pipe=2,data=2,model=2 --cut layers "
    "--microbatches 4 --set num_layers=4 --set parallel=tp+sp",
    "torch_llama-world": "examples/torch_llama.py --mesh 2x2 --world -- --model debug --seq 64 "
    "--tp 2 --checkpoint --clip 1",
    "torch_llama-world-large": "examples/torch_llama.py --mesh 64x8 --world -- --num-layers 2",
    "torch_llama_plain_tp": "examples/torch_llama_plain_tp.py --mesh 2x2 --world -- --model debug "
    "--seq 64 --tp 2",
    "torch_llama_plain_tp-shard": "examples/torch_llama_plain_tp.py --mesh 1x8 --world -- "
    "--num-layers 2 --head shard",
    "torch_huggingface": "examples/torch_huggingface.py --mesh 4x2 --set num_layers=2",
    "torch_huggingface-mixtral": "examples/torch_huggingface.py --mesh 4x2 --set num_layers=1 "
    "--set model=mixtral-8x7b",
    "torch_huggingface-world": "examples/torch_huggingface.py --mesh 2x2 --world -- --small "
    "--seq 64 --tp 2 --model qwen3-8b",
    "torch_resnet50_ddp": "examples/torch_resnet50_ddp.py --mesh 8",
    "torch_resnet50_ddp-world": "examples/torch_resnet50_ddp.py --mesh 8 --world",
    "torch_dlrm": "examples/torch_dlrm.py --mesh 8",
    "torch_dlrm-world": "examples/torch_dlrm.py --mesh 4 --world -- --batch 16 --rows 100",
    "torch_deepseek_moe": "examples/torch_deepseek_moe.py --mesh 2x2 --world -- --small "
    "--experts 2 --seq 64",
    "torch_pipeline": "examples/torch_pipeline.py --mesh 2x2 --world -- --model debug --pipe 2 "
    "--microbatches 4 --seq 64",
    "torch_cuda_script": "examples/torch_cuda_script.py --mesh 64 --world -- --depth 2 --width 64 "
    "--heads 4 --seq 64",
    "gpt_megatron-chunks": "benchmarks/models/gpt_megatron.py --mesh pipe=2,data=1,model=2 "
    "--set num_layers=4 --set chunks=2 --set microbatches=4 --set recompute=selective",
    "llama_fsdp": "benchmarks/models/llama_fsdp.py --mesh 16 --set scan=true",
    "mpt_fsdp-recompute": "benchmarks/models/mpt_fsdp.py --mesh 8 --set model=1b --set micro_batch=6 "
    "--set recompute=true",
    "zero_bubble": "tests/torch_programs/pipelines.py --mesh 4 --world -- "
    "ScheduleInterleavedZeroBubble --parallel fsdp --stages 4",
    "dual_pipe": "tests/torch_programs/pipelines.py --mesh 4 --world -- ScheduleDualPipeV "
    "--parallel fsdp --stages 4",
    "hlo_gpu": "tests/golden/hlo/scanned_block_gpu.txt --mesh data=2,model=4",
    "hlo_tpu": "tests/golden/hlo/scanned_block_tpu.txt --mesh data=2,model=4",
}
#: Lists of clusters, help, and messages for unusable input: captures nothing.
COMMANDS = "commands"


def main() -> int:
    """Parse arguments and do one of the commands; returns the exit status."""
    options = _parser().parse_args()
    if options.command == "list":
        print("\n".join([COMMANDS, *CASES]))
        return 0
    if options.command == "record":
        return record(options.out, options.tree.resolve(), options.only, options.processes)
    from benchmarks.same_outputs_compare import compare

    return compare(options.before, options.after, options.allow)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write what a checkout gives to OUT")
    recording.add_argument("out", type=Path)
    recording.add_argument("--tree", type=Path, default=ROOT, help="checkout (default: this one)")
    recording.add_argument("--only", default="*", help="cases whose names match")
    recording.add_argument("--processes", type=int, default=2)
    comparing = commands.add_parser("compare", help="exit with 1 if outputs differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    allow = ROOT / "benchmarks" / "data" / "same_outputs.toml"
    comparing.add_argument("--allow", type=Path, default=allow, help="what may differ, and why")
    commands.add_parser("list", help="print the names of the cases")
    return parser


def record(out: Path, tree: Path, only: str, processes: int) -> int:
    """Write outputs of the cases that match to `out`; returns 1 if one did not get to its end."""
    names = [n for n in (*sorted(CASES, key=_is_quick), COMMANDS) if fnmatchcase(n, only)]
    if only == "*" and (out / INDEX).is_file():
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with ThreadPoolExecutor(processes) as pool:
        ended = list(pool.map(lambda name: _record_case(name, tree, out), names))
    outputs = index(out)
    document = {"commit": _commit(tree), "outputs": outputs}
    (out / INDEX).write_text(json.dumps(document, indent=0), encoding="utf-8")
    print(f"{len(outputs)} outputs in {out}, {time.monotonic() - started:.0f} s")
    return int(not all(ended))


def _is_quick(name: str) -> bool:
    """Long ones first, so that no process is left with one at the end."""
    return not name.startswith("torch")


def _record_case(name: str, tree: Path, out: Path) -> bool:
    """Run the worker; what it says when it crashes is an output too."""
    started = time.monotonic()
    file = out / f"{name}.zip"
    file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="flint-same-") as scratch:
        how_many = "some" if "-" in name else "all"
        command = [sys.executable, "-P", WORKER, file, tree, scratch, how_many]
        command += shlex.split(CASES.get(name, ""))
        done = subprocess.run(
            command,
            check=False,
            cwd=scratch,
            env=_environment(tree),
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
    said = done.stderr.strip()
    if done.returncode:
        last = said.rpartition("\n")[2]
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("crash.txt", last.replace(str(tree), "<tree>"))
    note = f": {said[-2000:]}" if done.returncode else ""
    print(f"{name}  {time.monotonic() - started:.0f} s{note}", flush=True)
    return not done.returncode


def _environment(tree: Path) -> dict[str, str]:
    """The checkout's Flint first, tables as wide everywhere, no colours, no accelerators."""
    own = {"PYTHONPATH": str(tree), "COLUMNS": "100", "NO_COLOR": "1"}
    return {**os.environ, **own, "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}


def index(out: Path) -> dict[str, str]:
    """By name (CASE/OUTPUT), the SHA-256 of every output."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents(out)}


def contents(out: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every output of a recording, in order of names."""
    for file in sorted(out.glob("*.zip")):
        with zipfile.ZipFile(file) as archive:
            for name in sorted(archive.namelist()):
                yield f"{file.stem}/{name}", archive.read(name)


def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
