"""Redaction: the workload with neutral words for its names, and estimates that are equal to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flint.ir.columns import in_order_of_use
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import COLUMN_TYPES, Kind, Program
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.tools.share.leaks.vocabulary import is_public_opcode, op_word
from flint.tools.share.names.metadata import neutral_metadata
from flint.tools.share.names.words import Words


def redacted(workload: Workload) -> Workload:
    """The level `names`: names and sources gone; structure, shapes, bytes, groups and durations as they are.

    Axes are `axis0`, ..., rank classes `class0`, ..., operators of nobody's public vocabulary `op.CLASS`.
    What estimates read of names keeps its effect: which layer and kernel rows are of, which arguments are
    of one family, which gathers are of one line. Of the metadata stays what `names.metadata` lists.
    Redacting twice changes nothing more.
    """
    words = Words.of(workload)
    mesh = words.mesh(workload.mesh)
    return Workload(
        mesh,
        tuple(_program(p, mesh, words) for p in workload.programs),
        tuple(_rank_class(c, n, workload, words) for n, c in enumerate(workload.classes)),
        neutral_metadata(workload.metadata, words.axes),
    )


def _rank_class(one: RankClass, number: int, workload: Workload, words: Words) -> RankClass:
    name = "all" if len(workload.classes) == 1 else f"class{number}"
    where = {words.axes[axis]: tuple(at) for axis, at in one.where.items()}
    return RankClass(name, one.program, where, one.ranks)


def _program(program: Program, mesh: Mesh, words: Words) -> Program:
    regions = tuple(replace(r, name="", location="") for r in program.regions)
    groups = tuple(replace(g, axes=words.refs(g.axes)) for g in program.groups)
    routes = tuple(replace(r, axes=words.refs(r.axes)) for r in program.routes)
    streams = tuple(words.streams[s] for s in program.streams)
    tables: dict[str, Any] = {"groups": groups, "routes": routes, "regions": regions}
    columns = {**_strings(program, words), **_opcodes(program)}
    found = replace(program, mesh=mesh, streams=streams, **tables, **columns)
    # Streams keep their order: where two are alike it says which one goes first.
    ordered = in_order_of_use(found)
    return replace(ordered, stream=found.stream, streams=found.streams)


def _strings(program: Program, words: Words) -> dict[str, Any]:
    """Columns and table of strings; of locations those of collectives alone, and no causes."""
    gathers = program.kind == Kind.COLLECTIVE
    table: dict[str, int] = {"": 0}
    found: dict[str, Any] = {"cause": np.zeros(len(program), COLUMN_TYPES["cause"])}
    for column, neutral in (
        ("scope", words.scopes),
        ("name", words.names),
        ("location", words.places),
    ):
        renamed = [neutral.get(text, "") for text in program.strings]
        number = np.array([table.setdefault(text, len(table)) for text in renamed])
        found[column] = number[getattr(program, column)].astype(COLUMN_TYPES[column])
    found["location"] = np.where(gathers, found["location"], 0).astype(COLUMN_TYPES["location"])
    return {**found, "strings": tuple(table)}


def _opcodes(program: Program) -> dict[str, Any]:
    """The public opcodes as they are, others by the class of each row that has them."""
    public = np.array([is_public_opcode(name) for name in program.opcodes], dtype=np.bool_)
    kept = [name for name, is_public in zip(program.opcodes, public, strict=True) if is_public]
    numbers = {name: n for n, name in enumerate(kept)}
    column = np.array([numbers.get(name, 0) for name in program.opcodes])[program.opcode]
    for row in np.flatnonzero(~public[program.opcode]).tolist():
        word = op_word(OpClass(int(program.op[row])))
        column[row] = numbers.setdefault(word, len(numbers))
    return {"opcode": column.astype(COLUMN_TYPES["opcode"]), "opcodes": tuple(numbers)}
