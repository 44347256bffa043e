"""What readers believe: numbers in their ranges, arrays as far as bytes reach, stored tables alone."""

from __future__ import annotations

import ast
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import flint
from flint.backends.cost.replay.changes import main_rows
from flint.errors import FlintError, Malformed
from flint.io.records import Count, Fraction, Nanoseconds, NonNegative, Positive, record
from flint.io.sqlite import open_tables
from flint.ir.workload import Workload
from flint.ir.workload_file import array_of
from flint.tools.change.diff.snapshot import Snapshot
from flint.tools.change.project.lock import Lock, load_lock
from flint.tools.explore.result import Result, Status
from flint.tools.explore.study.run import open_study
from flint.tools.explore.study.study import Study
from flint.tools.measure.profiles import nsight
from tests.explore_points import result_at, space_of
from tests.nsys_exports import small_export
from tests.properties.test_invariants import sample
from tests.tools.change.test_compare import program, side

ROOT = Path(__file__).parents[3]
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Count, "-1", "greater than or equal to 0"),
        (Count, "1.0", "valid integer"),
        (Count, '"1"', "valid integer"),
        (Count, str(1 << 63), "less than or equal"),
        (Positive, "0", "greater than or equal to 1"),
        (Fraction, "7.5", "less than or equal to 1"),
        (Fraction, "true", "valid number"),
        (NonNegative, "NaN", "finite"),
        (NonNegative, "1e999", "finite"),
        (Nanoseconds, "1e308", "less than or equal"),
        (dict[str, Count], '{"a": {"b": 1}}', "a: "),
        (list[Count], "[1, [", "EOF"),
    ],
)
def test_numbers_out_of_range_are_told_with_their_place(kind, text, said):
    with pytest.raises(Malformed, match=said):
        record(kind, text)


def _claims(shape: str, dtype: str = "<f4") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape}), }}"
    return b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117).encode() + b"\n"


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (_claims("1099511627776,"), "need 4,398,046,511,104 bytes, but 0 are present"),
        (_claims("1048576, 1048576"), "need 4,398,046,511,104 bytes"),
        (_claims("0,", "|O"), "neither numbers nor text"),
        (_claims("", "<V8"), "neither numbers nor text"),
        (b"\x93NUMPY", "does not begin like a numpy array"),
    ],
)
def test_arrays_are_believed_as_far_as_their_bytes_reach(array: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        array_of(array, "array")


MEASURED = {"rank": 0, "span_ns": 5.0, "steps": 1}


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"measured": {"format": "kineto", "classes": [MEASURED]}}, "measured.device"),
        ({"measured": {"format": "k", "device": "d", "classes": [{}]}}, r"classes\[0\].rank"),
        ({"measured": {"format": "k", "device": "d", "classes": [{**MEASURED, "span_ns": -1}]}}, "span_ns"),
        ({"measured": {"format": "k", "device": "d", "classes": [MEASURED] * 2}}, "2 of 1 rank classes"),
        ({"measured": {"format": "k", "device": "d", "classes": [{**MEASURED, "rank": 99}]}}, "not one of the 8"),
        ({"pipeline": {"microbatches": -1}}, "pipeline.microbatches"),
        ({"pipeline": {"axis": "none"}}, "axis 'none'"),
        ({"pools": {"axis": "x", "prefill": [0], "decode": [1]}}, "not those of pools"),
        ({"compiler": {"name": "xla-gpu"}}, "compiler.chip"),
        ({"profile": 7}, "profile"),
        ({"warnings": [1]}, "warnings"),
    ],
)  # fmt: skip
def test_metadata_that_commands_read_are_typed(metadata, said):
    data = Workload.single(sample(), metadata).to_bytes()
    with pytest.raises(FlintError, match=said) as caught:
        Workload.from_bytes(data)
    assert caught.value.code == "FL304"


def test_numbers_of_calls_allocate_nothing():
    rows = sample()
    launcher = np.full(len(rows), (1 << 31) - 1, dtype=np.int32)  # a table of them had 16 GiB
    assert len(main_rows(replace(rows, launcher=launcher))) == len(rows)


# SQLite -------------------------------------------------------------------------------------------


def _changed(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()
    return path


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.mark.parametrize(
    "made_of",
    [
        f'CREATE VIEW "{KERNELS}" AS {ENDLESS} SELECT k.* FROM k, r',
        f'CREATE VIEW "{KERNELS}" (start) AS {ENDLESS} SELECT n FROM r',
        f"CREATE VIRTUAL TABLE {KERNELS} USING fts5(start)",
    ],
)
def test_what_is_no_stored_table_is_not_asked(made_of, tmp_path):
    path = small_export().write(tmp_path / "a.sqlite")
    copied = f'ALTER TABLE "{KERNELS}" RENAME TO k'
    _changed(path, copied, made_of)
    with pytest.raises(FlintError, match="is not a stored table") as caught:
        nsight.read(path)
    assert caught.value.code == "FL826"


def test_columns_that_are_calculated_are_not_read(tmp_path):
    path = tmp_path / "a.db"
    heavy = "y AS (hex(zeroblob(50000000))) VIRTUAL"
    _changed(path, f"CREATE TABLE t (x INT, {heavy})", "INSERT INTO t (x) VALUES (1)")
    with open_tables(path, 1 << 20, is_still=True) as tables:
        assert list(tables.rows("t", "x", "z")) == [(1, None)]
        with pytest.raises(Malformed, match="calculated columns"):
            list(tables.rows("t", "x", "y"))
        with pytest.raises(Malformed, match="more steps than its size allows"):
            list(tables.each(f"{ENDLESS} SELECT count(*) FROM r"))
    with (
        pytest.raises(Malformed, match="at most 64 are read"),
        open_tables(path, 64, is_still=True),
    ):
        pass


def _study(folder: Path) -> Path:
    space, path = space_of(folder, range(1, 3)), folder / "s.db"
    with open_study(path, space) as file:
        file.add(map(result_at, space.points()))
    return path


_LIE = "UPDATE points SET {column}={value}, result=json_set(result, '$.{column}', {value})"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (_LIE.format(column="step_time_ns", value=-1), "step_time_ns"),
        (_LIE.format(column="mfu", value=7.5), "mfu"),
        (_LIE.format(column="memory_bytes", value=-(2**62)), "memory_bytes"),
        (_LIE.format(column="memory_bytes", value=2**62), "fit into"),
        (_LIE.format(column="step_time_ns", value=1), "longer than all"),
        ("UPDATE points SET mfu=0.5", "its mfu is 0.5"),
        ("UPDATE points SET result=(SELECT max(result) FROM points)", "belongs to another point"),
        ("UPDATE points SET result=x'ff00'", "Invalid JSON"),
        ("UPDATE study SET value='[]' WHERE name='subject'", "should be an object"),
        ("UPDATE study SET value='{}' WHERE name='space'", "dimensions"),
        ("DELETE FROM study WHERE name='versions'", "does not contain its versions"),
        ("UPDATE generations SET shared='[1]'", "dict"),
        ("UPDATE inputs SET kind='x'", None),
        ("CREATE TRIGGER t AFTER INSERT ON points BEGIN SELECT 1; END", "not those of a study"),
        ("CREATE VIEW v AS SELECT 1", "not those of a study"),
    ],
)
def test_studies_that_contradict_themselves_are_refused(statement, said, tmp_path):
    path = _changed(_study(tmp_path), statement)
    if said is None:
        assert Study.load(path).results  # there were no inputs
        return
    for read in (Study.load, lambda p: open_study(p, space_of(tmp_path, range(1, 3))).__enter__()):
        with pytest.raises(FlintError, match=said) as caught:
            read(path)
        assert caught.value.code == "FL864"


def test_results_with_numbers_that_cannot_be_together():
    point = next(space_of(Path("/nowhere")).points())
    fine = Result(point, Status.FITS, 8, step_time_ns=10.0, low_ns=9.0, high_ns=11.0)
    assert fine.contradiction() == ""
    for wrong in (
        replace(fine, low_ns=12.0),
        replace(fine, compute_ns=100.0),
        replace(fine, exposed_ns={"data": 100.0}),
        replace(fine, memory={"weights": 1}),
        replace(fine, memory_bytes=2, capacity_bytes=1),
    ):
        assert wrong.contradiction()


# Locks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("program", "bytes"), -1),
        (("program", "mesh", "x"), 0),
        (("estimates", "h100-dgx", "derate"), -1),
        (("estimates", "h100-dgx", "exposed_ns"), {"x": 1e308}),
        (("estimates", "h100-dgx", "exposed_ns"), {"x": 1e12}),
        (("estimates", "h100-dgx", "mfu"), 7.5),
        (("estimates", "h100-dgx", "memory_bytes"), {"weights": 2**50}),
    ],
)
def test_numbers_of_a_lock_have_ranges(path, value, tmp_path):
    found: Snapshot = side(program("a", "b", gathers=1), "h100-dgx").snapshot
    document = json.loads(Lock({"it": found}).to_bytes())
    inside = document["captures"]["it"]
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    file = tmp_path / "flint.lock"
    file.write_text(json.dumps(document))
    with pytest.raises(FlintError) as caught:
        load_lock(file)
    assert caught.value.code == "FL723"


# Bugs are ours -------------------------------------------------------------------------------------

#: Errors that a bug raises as well as a file: who catches them blames the file for both.
_WIDE = {"Exception", "BaseException", "KeyError", "TypeError", "AttributeError", "IndexError",
         "LookupError", "ArithmeticError"}  # fmt: skip
_READERS = ("flint/tools/measure/profiles", "flint/tools/measure/measurements", "frontends/files", "passes/hlo", "flint/ir",
            "flint/tools/change/project", "flint/tools/explore/study", "flint/tools/share", "flint/tools/change/diff",
            "backends/chakra/reading", "flint/tools/simulators", "backends/cost")  # fmt: skip
#: Those that are left: around one call of a library, of the system, or of tables of operators.
_LEFT = {
    "flint/ir/workload_file.py": 1,
    "flint/tools/simulators/launcher.py": 1,
    "flint/tools/simulators/process.py": 1,
    "flint/tools/explore/study/study_format.py": 2,
    "flint/tools/change/project/captures.py": 1,
    "flint/tools/change/project/comment.py": 1,
    "flint/tools/measure/measurements/aiconfigurator.py": 1,
    "flint/tools/measure/profiles/contradictions/check.py": 1,
    "flint/tools/measure/profiles/execution_trace/chakra.py": 1,
    "flint/tools/measure/profiles/operators/events.py": 1,
    "flint/tools/measure/profiles/source.py": 1,
}


def test_readers_catch_no_errors_of_their_own():
    found: dict[str, int] = {}
    for folder in _READERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ExceptHandler) and _is_wide(node):
                    name = path.relative_to(ROOT).as_posix()
                    found[name] = found.get(name, 0) + 1
    assert found == _LEFT


def _is_wide(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return bool({n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} & _WIDE)


def test_a_bug_while_hlo_is_walked_is_ours(monkeypatch):
    from flint.frontends.files.hlo import read_hlo
    from flint.ir.mesh import Mesh
    from flint.passes.hlo import walk

    def broken(*_):
        return {}["our own bug"]

    data = (ROOT / "tests/golden/hlo/scanned_block_gpu.txt").read_bytes()
    monkeypatch.setattr(walk, "work_of", broken)
    with pytest.raises(KeyError, match="our own bug"):
        read_hlo(data, Mesh(("data", "model"), (2, 4)))


def test_nodes_that_are_there_twice_are_refused(tmp_path):
    """Each waits for the one before: a follower that was there twice ran twice, and so did its own."""
    nodes = [
        {"id": str(n), "name": "a", "type": "COMP_NODE", "durationMicros": "5", "dataDeps": [str(n - 1)] * (n > 0)}
        for n in range(40)
    ]  # fmt: skip
    path = tmp_path / "t.0.et.json"
    path.write_text("\n".join(map(json.dumps, [{"version": "1"}, *nodes, *nodes])))
    with pytest.raises(FlintError, match="2 nodes with the number 0") as caught:
        flint.import_profiles(path)
    assert caught.value.code == "FL823"
