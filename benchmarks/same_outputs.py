"""Whether two checkouts of Flint give the same outputs, to the byte.

    python -m benchmarks.same_outputs ../older-checkout
    python -m benchmarks.same_outputs ../older-checkout --only 'llama_jax*' --keep /tmp/same

Runs the same commands in both checkouts (that one, then this one; the programs captured are each
checkout's own) over every example on small meshes and a few large ones: captures of operations and
of kernels, traces for each profile and cluster, estimates for each profile on each cluster,
timelines, checks, explanations, graphs, help, and messages for unusable input. What they print and
write is compared file by file. Times and paths of the machine are left out, and so are workload
files: what they say is in the graphs, so a column that only one version has is no difference.

Prints a paragraph for all files that first differ in the same line but for numbers, and exits with 1
if there is one. `--keep` keeps the outputs of both, `before` and `after`, to look at.

Only the public surface is used (the command, and what `flint` exports), as modules move between
versions.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: A case takes about 10 s; the longest a minute on a loaded machine.
MOST_SECONDS = 900
#: Of larger meshes, one rank of each class is written.
MOST_RANKS = 8
#: Where there are timelines, and all profiles of every program.
TIMELINES = ("h100-dgx", "v5p")
SHOWN_FILES, SHOWN_CHARACTERS = 3, 160

#: Name of a case, and what `flint capture` is given: the program first, from the checkout. Each
#: profile is estimated on each cluster for names without "-", which stands before a variant.
CASES = dict(
    line.split(": ", 1)
    for line in """\
decode_jax: examples/decode_jax.py --mesh 2x4 --set model=8b --set num_layers=2 --set tokens=3
decode_jax-int8: examples/decode_jax.py --mesh 2x4 --set model=8b --set num_layers=2 --set cache=int8 --set layers=unrolled
decode_jax-large: examples/decode_jax.py --mesh 8x8
disaggregated_jax: examples/disaggregated_jax.py --mesh pool=4,data=1,model=2 --set num_layers=2
disaggregated_jax-reshard: examples/disaggregated_jax.py --mesh pool=2,major=2,minor=2 --set prefill_tp=major+minor --set decode_tp=minor --set num_layers=2
gpt3_jax: examples/gpt3_jax.py --mesh pipe=2,data=2,model=2 --microbatches 4 --set num_layers=4 --set model=6.7b
gpt3_jax-chunks: examples/gpt3_jax.py --mesh pipe=2,data=1,model=4 --microbatches 4 --set num_layers=8 --set chunks=2 --set remat=selective --set gradient_dtype=float32
llama_jax: examples/llama_jax.py --mesh 4x2 --set num_layers=2
llama_jax-large: examples/llama_jax.py --mesh 64x8
llama_jax-tp-sp: examples/llama_jax.py --mesh 64x8 --set model=70b --set parallel=fsdp+tp+sp --groups dims
llama_jax-unrolled: examples/llama_jax.py --mesh 2x4 --set num_layers=2 --set layers=unrolled --set remat=none --tensor-size output --link
llama_jax-profile: examples/llama_jax.py --mesh 4x2 --set num_layers=2 --set parallel=fsdp+tp+sp --profile xla-gpu
llama_jax-pipelined: examples/llama_jax.py:pipelined --mesh pipe=2,data=2,model=2 --schedule 1f1b --microbatches 4 --set num_layers=4
llama_jax-zb-h1: examples/llama_jax.py:pipelined --mesh pipe=4,data=2,model=1 --schedule zb-h1 --microbatches 4 --set num_layers=4 --set parallel=fsdp+tp+sp
mixtral_jax: examples/mixtral_jax.py --mesh 4x2 --set num_layers=2
mixtral_jax-einsum: examples/mixtral_jax.py --mesh 64x8 --set dispatch=einsum --set num_layers=2
resnet50_jax: examples/resnet50_jax.py --mesh 4x2
resnet50_jax-spatial: examples/resnet50_jax.py --mesh 4x2 --set spatial=true
ring_attention_jax: examples/ring_attention_jax.py --mesh 2x4
spmd_pipeline_jax: examples/spmd_pipeline_jax.py --mesh 4x2 --set num_layers=8 --set seq=256 --set microbatches=3
torch_llama: examples/torch_llama.py --mesh 4x2 --set num_layers=2
torch_llama-tp-sp: examples/torch_llama.py --mesh 64x8 --set num_layers=2 --set parallel=fsdp+tp+sp
torch_llama-cut: examples/torch_llama.py --mesh pipe=2,data=2,model=2 --cut layers --microbatches 4 --set num_layers=4 --set parallel=tp+sp
torch_llama-world: examples/torch_llama.py --mesh 2x2 --world -- --model debug --seq 64 --tp 2 --checkpoint --clip 1
torch_llama-world-large: examples/torch_llama.py --mesh 64x8 --world -- --num-layers 2
torch_llama_plain_tp: examples/torch_llama_plain_tp.py --mesh 2x2 --world -- --model debug --seq 64 --tp 2
torch_llama_plain_tp-shard: examples/torch_llama_plain_tp.py --mesh 1x8 --world -- --num-layers 2 --head shard
torch_huggingface: examples/torch_huggingface.py --mesh 4x2 --set num_layers=2
torch_huggingface-mixtral: examples/torch_huggingface.py --mesh 4x2 --set num_layers=1 --set model=mixtral-8x7b
torch_huggingface-world: examples/torch_huggingface.py --mesh 2x2 --world -- --small --seq 64 --tp 2 --model qwen3-8b
torch_resnet50_ddp: examples/torch_resnet50_ddp.py --mesh 8
torch_resnet50_ddp-world: examples/torch_resnet50_ddp.py --mesh 8 --world
torch_dlrm: examples/torch_dlrm.py --mesh 8
torch_dlrm-world: examples/torch_dlrm.py --mesh 4 --world -- --batch 16 --rows 100
torch_deepseek_moe: examples/torch_deepseek_moe.py --mesh 2x2 --world -- --small --experts 2 --seq 64
torch_pipeline: examples/torch_pipeline.py --mesh 2x2 --world -- --model debug --pipe 2 --microbatches 4 --seq 64
torch_cuda_script: examples/torch_cuda_script.py --mesh 64 --world -- --depth 2 --width 64 --heads 4 --seq 64
gpt_megatron-chunks: benchmarks/models/gpt_megatron.py --mesh pipe=2,data=1,model=2 --set num_layers=4 --set chunks=2 --set microbatches=4 --set recompute=selective
llama_fsdp: benchmarks/models/llama_fsdp.py --mesh 16 --set scan=true
mpt_fsdp-recompute: benchmarks/models/mpt_fsdp.py --mesh 8 --set model=1b --set micro_batch=6 --set recompute=true
zero_bubble: tests/torch_programs/pipelines.py --mesh 4 --world -- ScheduleInterleavedZeroBubble --parallel fsdp --stages 4
dual_pipe: tests/torch_programs/pipelines.py --mesh 4 --world -- ScheduleDualPipeV --parallel fsdp --stages 4
hlo_gpu: tests/golden/hlo/scanned_block_gpu.txt --mesh data=2,model=4
hlo_tpu: tests/golden/hlo/scanned_block_tpu.txt --mesh data=2,model=4
""".splitlines()
)
#: Messages for unusable input; this case captures nothing.
COMMANDS = "commands"
ERRORS = """\
capture llama_jax.py:tran --mesh 4x2
capture llama_jax.py
capture llama_jax.py --mesh 4x2x2
capture llama_jax.py --mesh 4xtwo
capture llama_jax.py --mesh 3x2 --set parallel=nothing
capture llama_jax.py --mesh 4x2 --set widht=3
capture llama_jax.py --mesh 4x2 --profile gcc
capture nowhere.py --mesh 4x2
capture README.md --mesh 4x2
check nowhere
estimate nowhere -c h100-dgx
estimate llama_jax.py -c h100-dgx
explain nowhere
clusters show h101-dgx""".splitlines()
HELP = ("", "capture", "estimate", "check", "explain", "export", "clusters", "clusters list")
#: What a run took, or where; digests in manifests are of files that are compared themselves, and the
#: kept workload is not compared.
LEFT_OUT = (
    (rb'(_seconds": )[\d.e-]+', rb"\1?"),
    (rb"(?m)^time .*$", b"time ?"),
    (rb"(?m)^info .*\n", b""),  # stages of `-v`, each with its time
    (rb"(\]:[EIW])\d{4} [\d:.]+ \d+ ", rb"\1 "),  # PyTorch's log: when, and which process
    (rb'("name": "workload.flint", "size_bytes": )\d+', rb"\1?"),
    (rb'("(?:digest|sha256)": )"[^"]*"', rb"\1?"),
)


def main() -> int:
    """Run both checkouts; 1 if an output differs or a case did not get to its end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", type=Path, help="the other checkout")
    parser.add_argument("--only", default="*", help="cases whose names match")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="an empty folder for the outputs")
    options = parser.parse_args()
    names = [n for n in (*CASES, COMMANDS) if fnmatchcase(n, options.only)]
    with tempfile.TemporaryDirectory(prefix="flint-same-") as scratch:
        place = (options.keep or Path(scratch)).resolve()
        sides = {place / "before": options.tree.resolve(), place / "after": ROOT}
        with ThreadPoolExecutor(options.processes) as pool:
            runs = [(n, tree, out / n) for n in names for out, tree in sides.items()]
            ended = list(pool.map(lambda run: _run_case(*run), runs))
        different = compare(*sides)
    return int(bool(different) or not names or not all(ended))


def _run_case(name: str, tree: Path, out: Path) -> bool:
    """Run a case in a process of its own; what it says when it crashes is an output too."""
    out.mkdir(parents=True)
    own = {"PYTHONPATH": str(tree), "COLUMNS": "100", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-P", __file__, name, tree, out],
        check=False,
        env={**os.environ, **own, "JAX_PLATFORMS": "cpu", CHILD: "1"},
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
    )
    if done.returncode:
        (out / "crash.txt").write_text(done.stderr.strip().rpartition("\n")[2])
        print(f"{name} of {tree}: {done.stderr[-2000:]}", flush=True)
    return not done.returncode


# What differs ------------------------------------------------------------------------------------


def compare(before: Path, after: Path) -> int:
    """Print how two folders of outputs differ; returns how many files do."""
    sides = [
        {str(p.relative_to(s)): p for p in s.rglob("*") if p.is_file() and p.suffix != ".flint"}
        for s in (before, after)
    ]
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted({*sides[0], *sides[1]}):
        found = difference(*(_content(s.get(name), before.parent) for s in sides))
        if found:
            output = name.partition("/")[2]
            form = re.sub(r"\d+", "#", "/".join([*output.split("/")[:1], Path(output).suffix]))
            line = re.sub(r"[\d.]+", "#", found[0] or found[1])
            groups[form, line].append(f"{name}\n    - {found[0]}\n    + {found[1]}")
    for (form, _), members in sorted(groups.items(), key=lambda g: -len(g[1])):
        print(f"\n{form}: {len(members)} files", *members[:SHOWN_FILES], sep="\n  ")
    count = sum(map(len, groups.values()))
    print(f"\n{len({*sides[0], *sides[1]})} files compared, {count} differ")
    return count


def _content(path: Path | None, place: Path) -> bytes | None:
    """A file without what belongs to the machine and the moment; None if there is none."""
    if path is None:
        return None
    data = path.read_bytes()
    if path.suffix not in (".et", ".pftrace"):
        for pattern, put in LEFT_OUT:
            data = re.sub(pattern, put, data)
        for side in ("before", "after"):
            data = data.replace(str(place / side).encode(), b"<out>")
    return data


def difference(one: bytes | None, two: bytes | None) -> tuple[str, str] | None:
    """The first lines that differ, or where bytes do; None if both are equal."""
    if one == two:
        return None
    if one is None or two is None:
        return ("(absent)", "(there)") if one is None else ("(there)", "(absent)")
    try:
        lines = one.decode().splitlines(), two.decode().splitlines()
    except UnicodeDecodeError:
        at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), -1)
        return f"{len(one)} bytes, at {at} {one[at:][:16]!r}", f"{len(two)} bytes {two[at:][:16]!r}"
    at = len(os.path.commonprefix(lines))
    first, second = ("\n".join(side[at : at + 1]) or "(end)" for side in lines)
    same = max(len(os.path.commonprefix([first, second])) - SHOWN_CHARACTERS // 2, 0)
    return first[same:][:SHOWN_CHARACTERS], second[same:][:SHOWN_CHARACTERS]


# What is compared: in the child ------------------------------------------------------------------

CHILD = "FLINT_SAME_OUTPUTS"


def child() -> None:
    """Write all outputs of one case to a folder."""
    name, tree, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    import flint

    if not Path(flint.__file__).resolve().is_relative_to(tree):
        raise SystemExit(f"flint is imported from {flint.__file__}, not from {tree}")
    run = Commands(out, str(tree))
    if name == COMMANDS:
        os.chdir(tree / "examples")
        run.of_no_program()
    else:
        program, *options = shlex.split(CASES[name])
        os.chdir((tree / program).parent)
        run.of_program([Path(program).name, *options], everywhere="-" not in name)


class Commands:
    """Runs commands of the checkout; a file for what each prints."""

    def __init__(self, out: Path, tree: str) -> None:
        self.out, self.tree = out, tree
        listed = json.loads(self.flint("clusters.json", "clusters", "list", "--json"))
        self.clusters = [c["name"] for c in listed["clusters"]]
        text = " ".join(self.flint("help.txt", "estimate", "--help").split())
        self.profiles = _listed(text, "--profile NAME", "kernels are used: ")
        self.policies = [p for p in _listed(text, "--overlap NAME", "begins: ") if "astra" not in p]

    def flint(self, file: str, *arguments: object) -> str:
        """Run the command, and write what it prints to `file`."""
        from flint.cli import app

        out, err, status = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                app(list(map(str, arguments)), prog_name="flint")
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
        said = out.getvalue() + (f"exit {status}\n{err.getvalue()}" if status or err.tell() else "")
        path = self.out / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(said.replace(self.tree, "<tree>").replace(sys.prefix, "<python>"))
        return out.getvalue()

    def of_no_program(self) -> None:
        """Help, every cluster, and what unusable input is answered."""
        for words in HELP:
            self.flint(f"help/flint {words}.txt", *words.split(), "--help")
        for cluster in self.clusters:
            self.flint(f"clusters/{cluster}.txt", "clusters", "show", cluster)
            self.flint(f"clusters/{cluster}.json", "clusters", "show", cluster, "--json")
        for line in ERRORS:
            self.flint(f"errors/{line}.txt", *line.split())

    def of_program(self, words: list[str], *, everywhere: bool) -> None:
        """Captures of a program, and all that is made of what they keep."""
        sizes = re.split("[x,]", words[words.index("--mesh") + 1])
        large = math.prod(int(size.rpartition("=")[2]) for size in sizes) > MOST_RANKS
        kept = self.out / "kernel"
        ranks = ["--ranks", "classes"] if large else []
        operations = ("-o", self.out / "op", "--granularity", "op", "--ranks", "classes")
        self.flint("capture.txt", "capture", *operations, *words)
        self.flint("capture.json", "capture", "-o", kept, "--json", *ranks, *words)
        if not (kept / "workload.flint").exists():
            return
        for command in ("check", "explain"):
            self.flint(f"{command}.txt", command, kept)
            self.flint(f"{command}.json", command, kept, "--json")
        for rank in (0, len(list(kept.glob("*.et"))) - 1) if not large else (0,):
            for form in ("json", "graphml", "dot"):
                self.flint(f"export/{rank}.{form}", "export", kept, "-f", form, "--rank", rank)
            for asked in ("--collective 0", "--collective 3", "--scope * --json"):
                self.flint(
                    f"explain/{rank}{asked}", "explain", kept, *asked.split(), "--rank", rank
                )
        self._estimates(kept, everywhere=everywhere)
        self._traces(kept / "workload.flint")

    def _estimates(self, kept: Path, *, everywhere: bool) -> None:
        for cluster in self.clusters:
            at = ("estimate", kept, "-c", cluster, "--unpriced", "zero")
            long = cluster in TIMELINES
            for profile in self.profiles if everywhere or long else ():
                self.flint(
                    f"estimate/{cluster}/{profile}.json", *at, "--profile", profile, "--json"
                )
            self.flint(f"estimate/{cluster}.txt", *at, "-v")
            for policy in self.policies if long else ():
                self.flint(f"estimate/{cluster}/{policy}.json", *at, "--overlap", policy, "--json")
            if long:
                drawn = self.out / f"{cluster}.pftrace"
                self.flint(f"{cluster}.drawn", *at, "--perfetto", drawn, "--class", "all")
        network = ("-c", kept / "network.yml", "--overlap", "astra-sim", "--json")
        self.flint("estimate-astra-sim.json", "estimate", kept, *network)

    def _traces(self, workload: Path) -> None:
        """Traces of one rank a class: as each profile rewrites, with durations of clusters."""
        import flint

        for name in (*self.profiles, *TIMELINES):
            trace = flint.Trace(flint.Workload.load(workload))
            cluster = {"cluster": name, "unpriced_is_zero": True} if name in TIMELINES else {}
            try:
                made = trace if cluster else trace.rewritten(name)
                made.save(self.out / "traces" / name, ranks="classes", **cluster)
            except flint.FlintError as error:
                (self.out / f"refused-{name}.txt").write_text(str(error))


def _listed(text: str, option: str, begin: str) -> list[str]:
    """Names that the help of an option enumerates."""
    found = re.search(rf"{option} .*?(?:{begin})(.*?) \(default", text)
    if found is None:
        raise SystemExit(f"the help of flint estimate does not list the names of {option}")
    return found[1].split(", ")


if __name__ == "__main__":
    sys.exit(child() if CHILD in os.environ else main())
