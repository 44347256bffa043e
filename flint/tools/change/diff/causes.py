"""Why two captures differ: what of the program, the mesh or the options is not what it was.

Each cause is a fact that both snapshots state, so that nothing here is a guess: an argument is
sharded otherwise, a loop runs more often, a collective is there that was not. What is only a
consequence of a cause that was found (shapes of a larger mesh, collectives of another sharding) is
no cause of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from flint.ir.op_class import ATTENTION, DATA_MOVEMENT, ELEMENTWISE, GENERATED, LAYOUT, PRODUCT
from flint.text import format_bytes, plural
from flint.tools.change.diff.arguments import Arguments, names_of
from flint.tools.change.diff.cause import Cause, CauseKind, Causes
from flint.tools.change.diff.snapshot import Argument, EstimateFacts, ProgramFacts, Snapshot

#: Collectives that a sentence names, and sizes.
_NAMED, _SIZES = 2, 4
#: Classes whose type is what people mean by precision.
_PRODUCTS = [op.name.lower() for op in sorted(PRODUCT | ATTENTION)]
#: Classes that move or make values and calculate nothing.
_COPIES = {
    *(op.name.lower() for op in LAYOUT | DATA_MOVEMENT | GENERATED),
    *("convert", "other", "unknown"),
}
#: Classes of few instructions for each element.
_LIGHT = {op.name.lower() for op in ELEMENTWISE}


def causes(a: Snapshot, b: Snapshot) -> Causes:
    """What differs between two snapshots."""
    found: list[Cause] = []
    renamed: tuple[tuple[str, str], ...] = ()
    if a.program is not None and b.program is not None:
        arguments = Arguments(a.program.arguments, b.program.arguments)
        found += _of_programs(a.program, b.program, arguments)
        renamed = tuple(arguments.renamed)
    found += _clusters(a, b)
    return Causes(tuple(found), renamed)


def _of_programs(a: ProgramFacts, b: ProgramFacts, arguments: Arguments) -> list[Cause]:
    if a == b or (a.structure == b.structure and a.options == b.options):
        return []
    trips, options = _changed_trips(a, b), _options(a, b)
    found = [*_mesh(a, b), *_layers(Counter() if options else trips, arguments)]
    found += _shapes(trips, arguments, follows=bool(a.mesh != b.mesh))
    found += _precision(a, b, arguments)
    found += arguments.sharding()
    found += _remat(a, b, {c.kind for c in found})
    found += arguments.others()
    found += arguments.donation()
    found += options
    known = {c.kind for c in found}
    found += _collectives(a, b, known)
    if not known & _CHANGES_OPERATIONS:
        found += _operations(a, b)
    return found or [Cause(CauseKind.ORDER, "dependencies of the same operations differ")]


#: Causes from which other operations follow, whatever the source says.
_CHANGES_OPERATIONS = {
    *(CauseKind.MESH, CauseKind.LAYERS, CauseKind.PRECISION, CauseKind.SHARDING),
    *(CauseKind.REMAT, CauseKind.ARGUMENTS, CauseKind.OPTIONS, CauseKind.SHAPE),
}
#: Causes from which other collectives of the partitioner follow.
_CHANGES_COLLECTIVES = _CHANGES_OPERATIONS - {CauseKind.PRECISION}


def _mesh(a: ProgramFacts, b: ProgramFacts) -> list[Cause]:
    if a.mesh == b.mesh:
        return []
    axes = dict.fromkeys((*a.mesh, *b.mesh))
    sizes = [(axis, a.mesh.get(axis, 1), b.mesh.get(axis, 1)) for axis in axes]
    said = [f"{axis} {old} -> {new}" for axis, old, new in sizes if old != new]
    return [Cause(CauseKind.MESH, ", ".join(said) or f"axes {_axes(a)} -> {_axes(b)}")]


def _axes(facts: ProgramFacts) -> str:
    return "x".join(facts.mesh)


# sizes ------------------------------------------------------------------------------------------


def _changed_trips(a: ProgramFacts, b: ProgramFacts) -> Counter[tuple[int, int]]:
    """How many loops run so many times now, and how often they ran."""
    if len(a.trip_counts) != len(b.trip_counts):
        return Counter()
    pairs = zip(a.trip_counts, b.trip_counts, strict=True)
    return Counter(pair for pair in pairs if pair[0] != pair[1])


def _layers(trips: Counter[tuple[int, int]], arguments: Arguments) -> list[Cause]:
    said = [f"{old} -> {new} iterations of {plural(n, 'loop')}" for (old, new), n in trips.items()]
    found: dict[tuple[int, int], list[str]] = {}
    for old, new in arguments.counts():
        found.setdefault((old.count, new.count), []).append(old.name)
    said += [f"{old} -> {new} of {names_of(names)}" for (old, new), names in found.items()]
    return [Cause(CauseKind.LAYERS, "; ".join(said))] if said else []


def _shapes(trips: Counter[tuple[int, int]], arguments: Arguments, *, follows: bool) -> list[Cause]:
    """Other sizes of dimensions, except those that are layers stacked for a loop.

    With `follows`, of a changed mesh, only of arguments whose whole shape is known.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    ranks: list[str] = []
    names: list[str] = []
    for old, new in arguments.pairs:
        if follows and not (old.sharding and new.sharding):
            continue
        if len(old.shape) != len(new.shape):
            ranks.append(f"{_shape(old)} -> {_shape(new)}")
            names.append(old.name)
            continue
        pairs = zip(old.shape, new.shape, strict=True)
        changed = [p for p in pairs if p[0] != p[1] and p not in trips]
        sizes.update(changed)
        names += [old.name] * bool(changed)
    said = [*dict.fromkeys(ranks), *(f"{old} -> {new}" for (old, new), _ in sizes.most_common())]
    shown = [*said[:_SIZES], *[f"{len(said) - _SIZES} more"] * (len(said) > _SIZES)]
    return [Cause(CauseKind.SHAPE, f"{', '.join(shown)} in {names_of(names)}")] if said else []


def _shape(a: Argument) -> str:
    return "x".join(map(str, a.shape)) or "scalar"


def _precision(a: ProgramFacts, b: ProgramFacts, arguments: Arguments) -> list[Cause]:
    found: dict[tuple[str, str], list[str]] = {}
    for old, new in arguments.pairs:
        if old.dtype != new.dtype:
            found.setdefault((old.dtype, new.dtype), []).append(old.name)
    if found:
        return [
            Cause(CauseKind.PRECISION, f"{old} -> {new} of {names_of(names)}")
            for (old, new), names in found.items()
        ]
    moved = _moved_types(a, b)
    products = {
        p: kept
        for p, ops in moved.items()
        if (kept := [o for o in ops if o.split()[0] in _PRODUCTS])
    }
    if not products and _classes(a) != _classes(b):
        return []  # other operations: their types are their own
    return [
        Cause(CauseKind.PRECISION, f"{old} -> {new} in {_listed(ops)}")
        for (old, new), ops in (products or moved).items()
    ]


def _listed(names: Sequence[str]) -> str:
    shown, rest = names[:_SIZES], len(names) - _SIZES
    return f"{', '.join(shown)} and {rest} more" if rest > 0 else ", ".join(shown)


def _moved_types(a: ProgramFacts, b: ProgramFacts) -> dict[tuple[str, str], list[str]]:
    """Classes and phases with as many operations as before, of which some have another type."""
    found: dict[tuple[str, str], list[str]] = {}
    first, second = _types(a), _types(b)
    for key in first.keys() & second.keys():
        lost, gained = first[key] - second[key], second[key] - first[key]
        lost, gained = (
            Counter({t: n for t, n in c.items() if t != "bool"}) for c in (lost, gained)
        )
        if lost and first[key].total() == second[key].total():
            for old, new in zip(sorted(lost), sorted(gained), strict=False):
                found.setdefault((old, new), []).append(" ".join(filter(None, key)))
    return {pair: sorted(found[pair]) for pair in sorted(found)}


def _classes(facts: ProgramFacts) -> Counter[str]:
    """How many operations there are of each class, without those that only change a type."""
    return Counter({op: n for op, n in _rows(facts).items() if op not in _COPIES})


def _types(facts: ProgramFacts) -> dict[tuple[str, str], Counter[str]]:
    found: dict[tuple[str, str], Counter[str]] = {}
    for o in facts.operations:
        said = f"{o.dtype} as {o.product}" if o.product not in ("", o.dtype) else o.dtype
        found.setdefault((o.op, o.phase), Counter())[said] += o.rows
    return found


# operations -------------------------------------------------------------------------------------


def _remat(a: ProgramFacts, b: ProgramFacts, known: set[CauseKind]) -> list[Cause]:
    """Other operations are computed again, of a forward pass that calculates the same.

    Without recomputation a forward pass calculates a little more, for the backward pass; so of
    operations that weigh little all have to be the same. With other layers, types or devices their
    number says nothing.
    """
    if known & {CauseKind.LAYERS, CauseKind.PRECISION, CauseKind.MESH}:
        return []
    repeated = [_counted(f, "remat", set()) for f in (a, b)]
    switched = bool(repeated[0]) != bool(repeated[1])
    heavy = _repeats_otherwise(a, b, _COPIES | _LIGHT)
    if not (switched or heavy or _repeats_otherwise(a, b, _COPIES)):
        return []
    flops = [sum(o.flops for o in f.operations if o.phase == "remat") for f in (a, b)]
    before, now = (r.total() for r in repeated)
    rows = f"{plural(before, 'operation')} recomputed before, {now:,} now"
    return [Cause(CauseKind.REMAT, f"{rows} ({_ratio(*flops)} in FLOPs)")]


def _repeats_otherwise(a: ProgramFacts, b: ProgramFacts, without: set[str]) -> bool:
    """Whether other operations are repeated although those of the forward pass are the same."""
    forward, repeated = (
        [_counted(f, phase, without) for f in (a, b)] for phase in ("forward", "remat")
    )
    return forward[0] == forward[1] and repeated[0] != repeated[1]


def _counted(facts: ProgramFacts, phase: str, without: set[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for o in facts.operations:
        if o.phase == phase and o.op not in without:
            found[o.op] += o.rows
    return found


def _ratio(before: float, after: float) -> str:
    return f"{after / before - 1:+.1%}" if before else "new"


def _options(a: ProgramFacts, b: ProgramFacts) -> list[Cause]:
    names = dict.fromkeys((*a.options, *b.options))
    said = [
        f"{name} {a.options.get(name, 'none')} -> {b.options.get(name, 'none')}"
        for name in names
        if a.options.get(name) != b.options.get(name)
    ]
    return [Cause(CauseKind.OPTIONS, ", ".join(said))] if said else []


def _collectives(a: ProgramFacts, b: ProgramFacts, known: set[CauseKind]) -> list[Cause]:
    """Collectives that the program says itself, and all where nothing else explains them.

    How often and how large the same ones are follows from other causes, if there are any.
    """
    follows = bool(known & _CHANGES_COLLECTIVES)
    sources = ("program",) if follows else ("program", "partitioner")
    first, second = _communication(a, sources), _communication(b, sources)
    if known & _CHANGES_OPERATIONS and first.keys() == second.keys():
        return []
    said = [
        f"{' '.join(filter(None, (phase, kind)))} over {over}: {_run(first, key)} -> {_run(second, key)}"
        for key in sorted(first.keys() | second.keys(), key=lambda k: _weight(first, second, k))
        for kind, over, phase in (key,)
        if first.get(key) != second.get(key)
    ]
    shown, rest = said[:_NAMED], said[_NAMED:]
    more = [f"{len(rest)} more"] if rest else []
    return [Cause(CauseKind.COLLECTIVES, "; ".join((*shown, *more)))] if said else []


#: Executions and bytes of each kind of collective over some axes in a phase.
_Communication = dict[tuple[str, str, str], tuple[float, float]]


def _communication(facts: ProgramFacts, sources: tuple[str, ...]) -> _Communication:
    found: _Communication = {}
    for c in facts.collectives:
        if c.source in sources:
            key = (c.kind, c.over, c.phase)
            count, size = found.get(key, (0, 0))
            found[key] = (count + c.executions, size + c.executions * c.comm_bytes)
    return found


def _run(found: _Communication, key: tuple[str, str, str]) -> str:
    if key not in found:
        return "none"
    count, size = found[key]
    return f"{count:,} of {format_bytes(int(size))}"


def _weight(
    a: _Communication, b: _Communication, key: tuple[str, str, str]
) -> tuple[float, tuple[str, str, str]]:
    """Sorts what changed most in bytes first."""
    return -abs(b.get(key, (0, 0))[1] - a.get(key, (0, 0))[1]), key


def _operations(a: ProgramFacts, b: ProgramFacts) -> list[Cause]:
    """Classes of which there are more or fewer; of as many that calculate, those of other sizes."""
    if _classes(a) == _classes(b) and (sizes := _sizes_of(a, b)):
        return [Cause(CauseKind.OPERATIONS, f"other sizes: {', '.join(sizes)}")]
    first, second = _rows(a), _rows(b)
    said = [
        f"{op} {first[op]:,} -> {second[op]:,}"
        for op in sorted(first.keys() | second.keys(), key=lambda o: _importance(o, first, second))
        if first[op] != second[op]
    ]
    if said:
        return [Cause(CauseKind.OPERATIONS, _listed(said))]
    moved = f"other sizes: {_ratio(a.bytes, b.bytes)} bytes of the same operations"
    return [Cause(CauseKind.OPERATIONS, moved)] if a.bytes != b.bytes else []


def _importance(op: str, a: Counter[str], b: Counter[str]) -> tuple[bool, int, str]:
    """Sorts what calculates first, and then by how many more or fewer there are."""
    return op in _COPIES, -abs(b[op] - a[op]), op


def _sizes_of(a: ProgramFacts, b: ProgramFacts) -> list[str]:
    """The classes whose FLOPs changed most."""
    first, second = _flops(a), _flops(b)
    changed = [op for op in first.keys() | second.keys() if first[op] != second[op]]
    ordered = sorted(changed, key=lambda op: (-abs(second[op] - first[op]), op))
    return [f"{op} {_ratio(first[op], second[op])} FLOPs" for op in ordered[:_NAMED]]


def _flops(facts: ProgramFacts) -> Counter[str]:
    found: Counter[str] = Counter()
    for o in facts.operations:
        found[o.op] += round(o.flops)
    return found


def _rows(facts: ProgramFacts) -> Counter[str]:
    found: Counter[str] = Counter()
    for o in facts.operations:
        found[o.op] += o.rows
    return found


# clusters ---------------------------------------------------------------------------------------


def _clusters(before: Snapshot, after: Snapshot) -> list[Cause]:
    """Estimates that were made on another cluster, or otherwise, or with other constants."""
    a, b = before.estimates, after.estimates
    programs = [s.program for s in (before, after) if s.program is not None]
    same_mesh = len(programs) < 2 or programs[0].mesh == programs[1].mesh
    same = len(programs) == 2 and programs[0].structure == programs[1].structure
    found: list[Cause] = []
    for one, other in shared_clusters(a, b):
        said = [f"{one} -> {other}"] if one != other else []
        for name in ("chip", "profile", "policy", "derate", *["mapping"] * same_mesh):
            old, new = getattr(a[one], name), getattr(b[other], name)
            if old != new:  # the mapping of another mesh follows from the mesh
                said.append(f"{name} {_plain(old)} -> {_plain(new)}")
        if not said and same and a[one].policy == b[other].policy == _RECORDED:
            if _moved(a[one], b[other], 0.0):
                found.append(
                    Cause(CauseKind.MEASURED, "the same program, with other measured times")
                )
            continue
        if not said and same and _moved(a[one], b[other], _SAME_ESTIMATE):
            said.append(f"{one} gives other numbers for the same program: its constants changed")
        if said:
            found.append(Cause(CauseKind.CLUSTER, ", ".join(said)))
        elif len(programs) < 2 and _moved(a[one], b[other], 0.0):
            text = f"numbers of {one}; a saved estimate has no program to explain them"
            found.append(Cause(CauseKind.ESTIMATE, text))
    return found


#: The policy of estimates that replay profiles.
_RECORDED = "recorded"
#: Estimates of one program that differ by less are equal: renamed arguments reorder its rows, and
#: with them what waits for what.
_SAME_ESTIMATE = 1e-3


def _moved(a: EstimateFacts, b: EstimateFacts, share: float) -> bool:
    """Whether a headline number differs by more than a share of it."""
    pairs = ((a.step_time_ns, b.step_time_ns), (a.peak_bytes, b.peak_bytes), (a.mfu, b.mfu))
    return any(abs(old - new) > share * max(abs(old), abs(new)) for old, new in pairs)


def shared_clusters(
    a: Mapping[str, EstimateFacts], b: Mapping[str, EstimateFacts]
) -> list[tuple[str, str]]:
    """Names of clusters that both sides have. One of each side is a pair, whatever it is called."""
    shared = [(name, name) for name in a if name in b]
    if not shared and len(a) == len(b) == 1:
        return [(next(iter(a)), next(iter(b)))]
    return shared


def _plain(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
