"""Output of nccl-tests and rccl-tests, in any of its layouts, and with what launchers put before lines.

A log may hold several runs, and output of other programs between its lines. A row is told by its
form: two whole numbers, a type, then (redop), (root) and one or two groups of time, algbw, busbw,
#wrong; versions differ in which of those there are. What is kept of hosts is how many there are.

"size" is the input of one rank, but of an all-gather the whole output. Of the two groups the one
out of place is taken, as programs do it. Where no list of devices says how many ranks there are, the
ratio of busbw to algbw does: 2 (n - 1) / n of an all-reduce, (n - 1) / n of most others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flint.errors import FlintError
from flint.ir.op_class import Collective
from flint.tools.measure.measurements.rows import CollectedRows, CollectiveTime, Measurements

FORMAT = "nccl-tests"
#: What launchers put before a line: Open MPI's --tag-output, Slurm's --label.
_PREFIX = re.compile(r"^\s*(?:\[[\w.@-]+,\s*\d+\](?:<std\w+>)?:\s?|\d+:\s(?=[\s#\d]))")
_PROGRAM = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_RANK = re.compile(
    r"Rank\s+(\d+)(?:\s+Group\s+(\d+))?(?:\s+Pid\s+\d+)?\s+on\s+(\S+)\s+device\s+\d+", re.IGNORECASE
)
_RUN = re.compile(r"\bnThread\s+\d+\s+nGpus\s+\d+\s+minBytes")
_HEADER = re.compile(r"^#?\s*(?:size|bytes)\s+(?:count|N)\s+type\b.*\btime\b")
_UNIT = re.compile(r"\((us|ms|ns|s)\)")
#: How many processes a launcher was told to start, and on how many nodes, or how many on each.
_PROCESSES = re.compile(r"\s(?:-np|-n|--ntasks|--np)[= ]*(\d{1,7})\b")
_NODES = re.compile(r"\s--nodes[= ]+(\d{1,6})\b|\bsrun\b.*\s-N[= ]*(\d{1,6})\b")
_PER_NODE = re.compile(
    r"\s(?:--ntasks-per-node|-npernode|--npernode|-ppn)[= ]+(\d{1,4})\b"
    r"|\bmpi(?:run|exec)\b.*\s-N[= ]*(\d{1,4})\b"
)
#: Threads, or GPUs of a thread, more than one: the ranks of a process are then their product.
_GPUS_EACH = re.compile(r"\s(?:-t|-g|--nthreads|--ngpus)[= ]*(?!1\b)\d")
TYPES = {
    "int8": "i8", "char": "i8", "uint8": "ui8", "int32": "i32", "int": "i32", "uint32": "ui32",
    "int64": "i64", "uint64": "ui64", "half": "f16", "float16": "f16", "float": "f32",
    "float32": "f32", "double": "f64", "float64": "f64", "bfloat16": "bf16", "bf16": "bf16",
    "f8e4m3": "f8E4M3FN", "f8e5m2": "f8E5M2", "fp8_e4m3": "f8E4M3FN", "fp8_e5m2": "f8E5M2",
    "fp8e4m3": "f8E4M3FN", "fp8e5m2": "f8E5M2",
}  # fmt: skip
#: Collectives by the name of the test.
COLLECTIVES = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "all_to_all": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "sendrecv": Collective.NONE,
}
#: Tests of what Flint has no collective for.
OTHERS = ("reduce", "gather", "scatter", "hypercube", "alltoallv")
_IN_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
#: busbw of bandwidths below this, in GB/s, says nothing of the number of ranks: two digits only.
_TELLING = 1.0
MOST_RANKS = 2**20


@dataclass(frozen=True, slots=True)
class _Row:
    size_bytes: int
    dtype: str
    time: float
    algbw: float
    busbw: float
    is_wrong: bool


@dataclass
class _Run:
    """One run of a test: what was said of it, and its rows."""

    test: str = ""
    unit: str = ""
    has_root: bool | None = None
    ranks: dict[int, tuple[int, str]] = field(default_factory=dict)
    launched: tuple[int, int] = (0, 0)
    rows: list[_Row] = field(default_factory=list)

    @property
    def members(self) -> tuple[int, int]:
        """Ranks and nodes of one group of the run; 0 for what nothing says."""
        if not self.ranks:
            return self.launched
        count, groups = max(self.ranks) + 1, {group for group, _ in self.ranks.values()}
        hosts = {host for group, host in self.ranks.values() if group == min(groups)}
        return count // len(groups), len(hosts)


def recognizes(text: str) -> bool:
    """Whether a text has a row, or the header of a table, of these tests."""
    return any(
        _HEADER.search(line) or _row_of(line.split(), _Run()) for line in _lines(text[:400_000])
    )


def read(text: str, name: str) -> Measurements:
    """All runs of a log.

    Raises FlintError FL855 where nothing says which collective ran, FL842 on how many ranks, FL845 for
    times that contradict their bandwidths, FL848 where no row can be used.
    """
    found = CollectedRows(name, FORMAT)
    for run in runs_of(text):
        take(run, found)
    return found.done()


def runs_of(text: str) -> list[_Run]:
    """The runs of a log, in its order."""
    runs = [_Run()]
    for line in _lines(text):
        if _starts(line, runs[-1]):
            runs.append(_Run())
        _understand(line, runs[-1])
    return [run for run in runs if run.rows]


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        bare = _PREFIX.sub("", line)
        if len(bare) < 500:  # a row has some 130 characters
            yield bare


def _starts(line: str, run: _Run) -> bool:
    """Whether a line is the first of a further run."""
    if not run.rows:
        return False
    again = _RUN.search(line) or _HEADER.search(line) or "Collective test starting" in line
    return bool(again) or _program_of(line) not in ("", run.test)


def _program_of(line: str) -> str:
    """The test that a line names, where it is the command or the test's own word."""
    if "concluded" in line:
        return ""
    found = [m for m in _PROGRAM.findall(line.replace("-", "_")) if m in (*COLLECTIVES, *OTHERS)]
    return found[-1] if found else ""


def _understand(line: str, run: _Run) -> None:
    if rank := _RANK.search(line):
        if int(rank[1]) < MOST_RANKS:
            run.ranks[int(rank[1])] = (int(rank[2] or 0), rank[3])
        return
    tokens = line.split()
    if row := _row_of(tokens, run):
        run.rows.append(row)
    elif _HEADER.search(line):
        run.has_root = "root" in tokens
        run.unit = "ms" if "bytes" in tokens else run.unit  # the first version's tables
    elif "(B)" in tokens and (unit := _UNIT.search(line)):
        run.unit = unit[1]
    else:
        run.test = _program_of(line) or run.test
        run.launched = launched(line) or run.launched


def launched(line: str) -> tuple[int, int] | None:
    """Ranks and nodes that the command of a launcher asks for, one GPU each; None for other lines."""
    if not re.search(r"\b(?:srun|mpirun|mpiexec)", line) or _GPUS_EACH.search(line):
        return None
    processes, nodes, each = (_count(p, line) for p in (_PROCESSES, _NODES, _PER_NODE))
    if nodes and each:
        return nodes * each, nodes
    return (processes, processes // each if each else nodes) if processes else None


def _count(pattern: re.Pattern[str], line: str) -> int:
    found = pattern.search(line)
    return int(next(g for g in found.groups() if g)) if found else 0


def _row_of(tokens: Sequence[str], run: _Run) -> _Row | None:
    if len(tokens) < 6 or not (tokens[0].isascii() and tokens[0].isdigit() and tokens[1].isdigit()):
        return None
    if tokens[2] not in TYPES:
        return None
    rest = list(tokens[3:])
    if rest[0].isalpha() and rest[0] != "N/A" and _number(rest[0]) is None or rest[0] == "none":
        rest.pop(0)
    has_root = run.has_root if run.has_root is not None else len(rest) % 4 == 1
    if has_root and rest and re.fullmatch(r"-?\d+", rest[0]):
        rest.pop(0)
    numbers = [_number(token) for token in rest[:3]]
    if len(rest) < 3 or any(n is None for n in numbers):
        return None
    time, algbw, busbw = (n if n is not None else math.nan for n in numbers)
    wrong = _number(rest[3].rstrip("*")) if len(rest) > 3 else None
    is_wrong = wrong is not None and wrong >= 1 or (len(rest) > 3 and rest[3].endswith("*"))
    return _Row(int(tokens[0]), TYPES[tokens[2]], time, algbw, busbw, is_wrong)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def take(run: _Run, found: CollectedRows) -> None:
    """Take the rows of a run."""
    test = run.test or _test_of_name(found.name) or _test_of_rows(run)
    if test in OTHERS:
        found.leave_out(f"of {test}_perf, which no price is fitted to", len(run.rows))
        return
    if not test:
        raise FlintError(
            "FL855",
            f"{found.name}: it does not say which collective was tested",
            help="keep the line that names all_reduce_perf, or name the file all_gather.log",
        )
    ranks, nodes = run.members
    is_told = ranks > 1 and (run.ranks or not _contradicts(run, test, ranks))
    if not is_told and any(row.busbw > 0 for row in run.rows):
        ranks, nodes = _ranks_of(run, test, found), 0
    unit = _unit_of(run, found.name)
    for row in run.rows:
        if row.is_wrong:
            found.leave_out("with wrong results")
            continue
        time = row.time * _IN_NS[unit]
        found.add(_collective(COLLECTIVES[test], row, ranks, nodes, time))


def _collective(
    collective: Collective, row: _Row, ranks: int, nodes: int, time_ns: float
) -> CollectiveTime:
    shared = collective is Collective.ALL_GATHER and ranks > 0
    size = row.size_bytes // ranks if shared else row.size_bytes
    return CollectiveTime(collective, size, ranks, nodes, row.dtype, time_ns)


def _test_of_name(name: str) -> str:
    lowered = name.lower().replace("-", "_")
    return next((t for t in (*COLLECTIVES, *OTHERS) if t in lowered), "")


def _test_of_rows(run: _Run) -> str:
    """An all-reduce is the only one whose busbw is above its algbw."""
    telling = [row for row in run.rows if row.algbw >= _TELLING]
    above = [row for row in telling if row.busbw > 1.1 * row.algbw]
    return "all_reduce" if telling and len(above) == len(telling) else ""


def _unit_of(run: _Run, name: str) -> str:
    """The unit of times, which bandwidths confirm."""
    unit = run.unit or "us"
    telling = [r for r in run.rows if r.algbw >= _TELLING and r.time > 0 and math.isfinite(r.time)]
    off = [r for r in telling if not 0.5 < r.size_bytes / (r.time * _IN_NS[unit]) / r.algbw < 2]
    if off:
        row = off[0]
        raise FlintError(
            "FL845",
            f"{name}: {row.size_bytes:,} bytes in {row.time:g} {unit} are not {row.algbw:g} GB/s",
            help="times of these tests are in microseconds, and bandwidths in 1e9 bytes per second",
        )
    return unit


def _contradicts(run: _Run, test: str, ranks: int) -> bool:
    """Whether bus bandwidths are not those of so many ranks, as where each process had several GPUs."""
    if test in ("sendrecv", "broadcast"):
        return False
    expected = (2 if test == "all_reduce" else 1) * (ranks - 1) / ranks
    telling = [r for r in run.rows if r.algbw >= _TELLING and math.isfinite(r.busbw)]
    return any(abs(r.busbw - expected * r.algbw) > 0.02 + 0.01 * r.busbw for r in telling)


def _ranks_of(run: _Run, test: str, found: CollectedRows) -> int:
    """How many ranks bus bandwidths stand for. Raises FlintError FL842 where they do not tell."""
    rounds = 2 if test == "all_reduce" else 1
    fastest = max(run.rows, key=lambda row: row.algbw if math.isfinite(row.algbw) else 0)
    if fastest.algbw >= _TELLING and math.isfinite(fastest.busbw) and test != "sendrecv":
        digit = 0.006 / fastest.algbw * 2
        share = fastest.busbw / fastest.algbw / rounds
        shares = share - digit, share + digit  # (n - 1) / n of n ranks
        low, high = (min(1 / (1 - s), MOST_RANKS) if s < 1 else MOST_RANKS for s in shares)
        counts = range(math.ceil(low), math.floor(high) + 1)
        round_ones = [n for n in counts if n & (n - 1) == 0] or list(counts[:2])
        if len(round_ones) == 1 and round_ones[0] >= 2:
            found.notes.append(f"{round_ones[0]} ranks, from busbw over algbw: no list of devices")
            return round_ones[0]
    raise FlintError(
        "FL842",
        f"{found.name}: it does not say how many ranks {test}_perf ran on",
        help="keep the lines '#  Rank  0 ... on HOST device 0', which it prints first",
    )
