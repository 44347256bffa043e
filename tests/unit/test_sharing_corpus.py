"""The corpus: draws are the same each time, and what they make are programs that keep all rules."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.sharing.corpus import __main__ as command
from benchmarks.sharing.corpus.capture import workload_of
from benchmarks.sharing.corpus.draw import Draw, drawn
from benchmarks.sharing.corpus.families import FAMILIES
from benchmarks.sharing.corpus.plan import FEWEST, MOST, STYLES, Axis, Plan
from flint.ir.program import Collective, Phase
from flint.ir.workload import Workload
from flint.tools.share.rules import broken_rules

NAMED = {family.name: family for family in FAMILIES}
PLAN = Plan(
    "fsdp", (Axis("x", 4, "shard"), Axis("dp", 2, "data")), True, "mixed", "adam", "full", 2, True, True, 2
)  # fmt: skip


def _draw(name: str, plan: Plan, **options: object) -> Draw:
    """The first draw of a family that is no model file, with another plan and some other options."""
    family = replace(NAMED[name], example=None)
    found = drawn(family, 0, 0)
    return replace(found, plan=plan, mesh=plan.mesh, options={**found.options, **options})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_draws_are_the_same_each_time(family):
    # a number and a seed say all; other numbers and other seeds say something else
    def told(number: int, seed: int) -> tuple[str, str, str]:
        found = drawn(family, number, seed)
        return found.file, found.mesh, found.words

    first = [told(n, 0) for n in range(40)]
    assert first == [told(n, 0) for n in range(40)]
    assert len({words for _, _, words in first}) > 30
    assert first[0][1:] != told(0, 1)[1:] or first[1][1:] != told(1, 1)[1:]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_meshes_have_one_to_three_axes_of_the_style(family):
    # meshes have the roles that the style names, names that differ, and 8 to 4,096 devices
    plans = [plan for n in range(40) if (plan := drawn(family, n, 0).plan) is not None]
    for plan in plans:
        roles = tuple(sorted(axis.role for axis in plan.axes))
        assert roles in {tuple(sorted(one)) for one in STYLES[plan.style]}
        assert len({axis.name for axis in plan.axes}) == len(plan.axes) <= 3
        assert FEWEST <= math.prod(axis.size for axis in plan.axes) <= MOST
    assert len({plan.mesh for plan in plans}) > len(plans) / 2


def test_a_decoder_trains_in_microbatches():
    # with shards over x: weights are gathered, gradients reduced; loops are of microbatches and layers
    draw = _draw("rotary decoder", PLAN, layers=3, blocks=False)
    program = workload_of(draw).programs[0]
    assert broken_rules(Workload.single(program)) == ()
    kinds = set(program.collective.tolist())
    assert Collective.ALL_GATHER in kinds
    assert kinds & {Collective.ALL_REDUCE, Collective.REDUCE_SCATTER}
    assert {2, 6} <= set(program.trips.tolist())
    assert Phase.BACKWARD in program.phase.tolist()


def test_experts_exchange_tokens():
    # two all-to-alls in a forward pass, over the axis of experts alone
    axes = (Axis("data", 2, "data"), Axis("ep", 4, "expert"))
    plan = replace(
        PLAN, style="ep", axes=axes, training=False, optimizer="none", remat="none", micro=1
    )
    draw = _draw("experts", plan, experts=8, dispatch="all-to-all", sparse_every=1, shared=False)
    program = workload_of(draw).programs[0]
    assert broken_rules(Workload.single(program)) == ()
    rows = np.flatnonzero(program.collective == Collective.ALL_TO_ALL)
    groups = [program.groups[int(program.group[row])] for row in rows]
    assert [[axis.name for axis in group.axes] for group in groups] == [["ep"], ["ep"]]


def test_captures_are_kept_and_listed(tmp_path, monkeypatch, capsys):
    # a second run keeps what the index tells of in the same words, and captures only what is missing
    arguments = [str(tmp_path), "--family", "autoencoder", "--count"]
    monkeypatch.setattr("sys.argv", ["corpus", *arguments, "1"])
    command.main()
    index = json.loads((tmp_path / "index.json").read_text("utf-8"))
    [row] = index
    assert row["family"] == "autoencoder"
    before = (tmp_path / row["file"]).read_bytes()
    (tmp_path / row["file"]).write_bytes(b"kept")
    command.main()
    assert (tmp_path / row["file"]).read_bytes() == b"kept"
    (tmp_path / "index.json").unlink()
    command.main()
    assert (tmp_path / row["file"]).read_bytes() == before
    assert "1 captures of 1 families" in capsys.readouterr().out
