"""A digest of what a workload does: equal for equal operations and dependencies.

Names, scopes, lines and the order of rows that do not depend on each other have no part in it: a
renamed argument of JAX changes the order of all arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from flint.ir.program import Kind, Program, RegionKind
from flint.ir.workload import Workload

#: Columns that are numbers by themselves; others index tables.
_NUMBERS = (
    *("kind", "op", "result_bytes", "operand_bytes", "flops", "mask", "collective", "comm_bytes"),
    *("channel", "phase", "flags"),
)
_TABLES = (
    *(("dtype", "dtypes"), ("shape", "shapes"), ("product", "products"), ("group", "groups")),
    *(("route", "routes"), ("stream", "streams")),
)
_SIZE = 16


def structure_of(workload: Workload) -> str:
    """The digest, in hexadecimal digits."""
    programs = [_program(p) for p in workload.programs]
    ran = sorted(
        programs[c.program] + repr((sorted(c.where.items()), c.ranks)).encode()
        for c in workload.classes
    )
    return _digest(repr(tuple(workload.mesh.shape.items())).encode(), *ran).hex()


def _digest(*parts: bytes) -> bytes:
    return blake2b(b"\0".join(parts), digest_size=_SIZE).digest()


def _program(program: Program) -> bytes:
    """Of its rows, each with what it depends on, and of what its loops carry."""
    own = _own(program)
    found: list[bytes] = []
    start, deps = program.dep_start.tolist(), program.deps.tolist()
    for row, text in enumerate(own):
        needs = sorted(found[d] for d in deps[start[row] : start[row + 1]])
        found.append(blake2b(text + b"".join(needs), digest_size=_SIZE).digest())
    carried = [
        found[into] + found[out]
        for r in program.regions
        if r.kind == RegionKind.LOOP
        for into, out in r.carries
    ]
    return _digest(*sorted(found), *sorted(carried))


def _own(program: Program) -> Iterator[bytes]:
    """What each row is by itself. Of an argument its sharding is a part."""
    tables = [list(map(str, getattr(program, table))) + [""] for _, table in _TABLES]
    texts = [getattr(program, column).tolist() for column, _ in _TABLES]
    numbers = [getattr(program, name).tolist() for name in _NUMBERS]
    regions = [
        repr((int(r.kind), t)) for r, t in zip(program.regions, program.region_trips, strict=True)
    ] + [""]
    dims, region, cause = program.dims.tolist(), program.region.tolist(), program.cause.tolist()
    argument = (program.kind == Kind.PARAMETER).tolist()
    compiled = (program.compiled > 0).tolist()
    for row, values in enumerate(zip(*numbers, strict=True)):
        named = [table[column[row]] for table, column in zip(tables, texts, strict=True)]
        sharding = program.strings[cause[row]] if argument[row] else ""
        parts = (values, dims[row], named, regions[region[row]], sharding)
        yield repr(parts).encode() + b" compiled" * compiled[row]
