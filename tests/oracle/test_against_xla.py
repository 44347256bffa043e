"""The `shardy` partitioner against XLA's own on the whole zoo: kinds, axes, counts and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("jaxlib", reason="XLA's partitioner comes with jaxlib")

from tests.oracle.partitioner_comparison import Communication, Comparison, Traffic, compare_all
from tests.oracle.partitioner_differences import DIFFERENCES, EQUAL_IN_NORMAL_FORM, REASONS
from tests.recorded import recorded_version_only
from tests.zoo import zoo

pytestmark = pytest.mark.long
_DOCS = Path(__file__).parents[2] / "docs" / "partitioners.md"
_BEGIN, _END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


@pytest.fixture(scope="module")
def comparisons() -> Mapping[str, Comparison]:
    """Every program partitioned twice, once for all tests of this file."""
    return {c.name: c for c in compare_all(zoo().values())}


def test_the_zoo_is_large_and_the_tables_are_about_it() -> None:
    assert len(zoo()) >= 80
    assert {*DIFFERENCES, *EQUAL_IN_NORMAL_FORM} <= set(zoo())
    assert not set(DIFFERENCES) & EQUAL_IN_NORMAL_FORM
    assert {d.reason for d in DIFFERENCES.values()} == set(REASONS)
    assert len(zoo()) - len(DIFFERENCES) >= 50
    assert all(4 <= e.mesh.size <= 64 for e in zoo().values())


#: Since jaxlib 0.12 XLA sends the last sum of each shard where it gathered the whole array.
RECORDED = {"op_cumsum"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=recorded_version_only) if n in RECORDED else n
        for n in zoo()
        if n not in DIFFERENCES
    ],
)
def test_equal(name: str, comparisons: Mapping[str, Comparison]) -> None:
    found = comparisons[name]
    if name in EQUAL_IN_NORMAL_FORM:
        assert found.shardy.normal == found.xla.normal
        assert found.verdict == "normal", "equal exactly: take it out of EQUAL_IN_NORMAL_FORM"
    else:
        assert found.shardy.plain == found.xla.plain


@recorded_version_only
@pytest.mark.parametrize("name", list(DIFFERENCES))
def test_different_as_explained(name: str, comparisons: Mapping[str, Comparison]) -> None:
    found, difference = comparisons[name], DIFFERENCES[name]
    assert found.verdict == "different", "equal now: take it out of DIFFERENCES"
    ratio = found.shardy.wire_bytes / found.xla.wire_bytes
    assert difference.low <= ratio <= difference.high, (
        f"sends {ratio:.3f} of what XLA's program sends: {found.shardy.normal} {found.xla.normal}"
    )


@recorded_version_only
def test_the_table_in_the_docs(
    comparisons: Mapping[str, Comparison], request: pytest.FixtureRequest
) -> None:
    text = _DOCS.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    table = docs_table([comparisons[name] for name in zoo()])
    if request.config.getoption("--update-golden"):
        text = before + _BEGIN + table + _END + after
        _DOCS.write_text(text, encoding="utf-8")
    current = text.split(_BEGIN)[1].split(_END)[0]
    assert current == table, "run with --update-golden"


def docs_table(found: list[Comparison]) -> str:
    """The reasons and the two tables of docs/partitioners.md."""
    lines = ["### Why they differ\n"]
    for reason, text in REASONS.items():
        names = ", ".join(f"`{n}`" for n, d in DIFFERENCES.items() if d.reason == reason)
        lines.append(f"**{reason}** ({names}). {text}\n")
    different = [c for c in found if c.name in DIFFERENCES]
    lines.append("### Programs that differ\n")
    lines += ["| program | mesh | Shardy | XLA | bytes sent, Shardy / XLA | reason |"]
    lines += ["|---|---|---|---|---|---|"]
    for c in different:
        ratio = c.shardy.wire_bytes / c.xla.wire_bytes
        cells = [c.name, c.mesh, _only(c.shardy, c.xla), _only(c.xla, c.shardy), f"{ratio:.2f}"]
        lines.append(f"| {' | '.join([*cells, DIFFERENCES[c.name].reason])} |")
    lines += ["\n### Programs that are equal\n", "| program | mesh | communication | equal |"]
    lines += ["|---|---|---|---|"]
    for c in found:
        if c.name not in DIFFERENCES:
            how = "normal form" if c.name in EQUAL_IN_NORMAL_FORM else "exactly"
            lines.append(f"| {c.name} | {c.mesh} | {_traffic(c.shardy.plain)} | {how} |")
    return "\n".join(lines) + "\n"


def _only(mine: Communication, other: Communication) -> str:
    """What one program has and the other has not, in the normal form."""
    return _traffic({k: v for k, v in mine.normal.items() if other.normal.get(k) != v})


def _traffic(traffic: Traffic) -> str:
    return "; ".join(
        f"{kind.replace('_', '-')} {axes} {count} x, {size:,} B"
        for (kind, axes), (count, size) in traffic.items()
    ) or "none"  # fmt: skip
