"""All rules on a workload; those of products, of what is sent, and of loops."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.dims import AttentionDims, ProductDims, ReductionDims
from flint.ir.mesh import AxisRef
from flint.ir.op_class import Collective, OpClass
from flint.ir.product_types import groups_of
from flint.ir.program import Flag, Int64s, Kind, Phase, Program, RegionKind
from flint.ir.workload import Workload
from flint.tools.share.rules.elements import RULES
from flint.tools.share.rules.view import BrokenRule, ProgramView, Rule, Told, is_split

# Rules of loops and of the order of phases.

#: Phases that are over when the optimizer begins.
_BEFORE_THE_OPTIMIZER = (Phase.FORWARD, Phase.BACKWARD, Phase.REMAT)


def _carries_agree(view: ProgramView) -> Told:
    """Carried value, first value and produced value have one type and shape."""
    p = view.program
    about, holds = _nothing(p), np.ones(len(p), dtype=np.bool_)
    for region in p.regions:
        for carried, produced in region.carries:
            about[carried] = True
            first = [d for d in p.dependencies(carried).tolist() if d < region.start]
            ends = [produced, *first[:1]]
            for end in (e for e in ends if view.is_plain[e] and view.is_typed[carried]):
                holds[carried] &= p.dtype[end] == p.dtype[carried]
                holds[carried] &= p.shape[end] == p.shape[carried]
    return Told(about, holds)


def _carries_begin(view: ProgramView) -> Told:
    """A carried value has a first value, from before the loop."""
    p = view.program
    about = view.is_carried & view.is_typed
    start = np.array([*(r.start for r in p.regions), len(p)], dtype=np.int64)[p.region]
    return Told(about, view.some(view.read < start[view.owner]))


def _loops_run(view: ProgramView) -> Told:
    """The first row of each loop stands for it: it runs, and has work in it."""
    p = view.program
    about, holds = _nothing(p), np.ones(len(p), dtype=np.bool_)
    for region in p.regions:
        if region.kind is RegionKind.LOOP and region.start < region.stop:
            about[region.start] = True
            holds[region.start] = region.trip_count >= 1
    return Told(about, holds)


def _loops_change(view: ProgramView) -> Told:
    """A loop that runs again changes a value that it carries, or communicates."""
    p = view.program
    about, holds = _nothing(p), np.ones(len(p), dtype=np.bool_)
    for region in p.regions:
        if region.kind is RegionKind.LOOP and region.trip_count > 1 and region.carries:
            about[region.start] = True
            holds[region.start] = any(a != b for a, b in region.carries)
    return Told(about, holds)


def _phases_in_order(view: ProgramView) -> Told:
    """Nothing before the optimizer reads what the optimizer makes."""
    p = view.program
    about = np.isin(p.phase, _BEFORE_THE_OPTIMIZER) & view.works & ~view.launched
    late = (p.phase[view.read] == Phase.OPTIMIZER) & view.works[view.read]
    return Told(about, view.every(~late))


def _forward_first(view: ProgramView) -> Told:
    """The forward pass reads nothing of the backward pass."""
    p = view.program
    about = (p.phase == Phase.FORWARD) & view.works & ~view.launched
    late = (p.phase[view.read] == Phase.BACKWARD) & view.works[view.read]
    return Told(about, view.every(~late))


def _nothing(program: Program) -> Mask:
    return np.zeros(len(program), dtype=np.bool_)


_OF_LOOPS = (
    Rule("carries", "values that a loop carries keep their type and shape", _carries_agree),
    Rule("carries-begin", "values that a loop carries come from before it", _carries_begin),
    Rule("loops-run", "loops run", _loops_run),
    Rule("loops-change", "a loop that runs again changes what it carries", _loops_change),
    Rule("optimizer-last", "no other phase reads what the optimizer computes", _phases_in_order),
    Rule("forward-first", "the forward pass reads nothing of the backward pass", _forward_first),
)


# Rules of collectives and messages: members, payload, result, pairs.

_REDUCE = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)


def _is(view: ProgramView, *kinds: Collective) -> Mask:
    found = np.isin(view.program.collective, kinds)
    return np.asarray(found & (view.program.kind == Kind.COLLECTIVE))


def group_sizes(program: Program) -> Int64s:
    """Members of the group of each row; 1 without a group."""
    sizes = [g.size(program.mesh) for g in program.groups]
    return np.array([*sizes, 1], dtype=np.int64)[program.group]


def _axes_exist(view: ProgramView) -> Told:
    """Axes of groups and routes are whole or parts of the mesh's, each longer than 1 and once."""
    p = view.program
    good = [_are_long(p, g.axes) and g.size(p.mesh) > 1 for g in p.groups]
    routes = [_are_long(p, r.axes) for r in p.routes]
    holds = np.array([*good, True], dtype=np.bool_)[p.group]
    holds &= np.array([*routes, True], dtype=np.bool_)[p.route]
    return Told((p.group >= 0) | (p.route >= 0), holds)


def _are_long(program: Program, axes: Sequence[AxisRef]) -> bool:
    return all(program.mesh.axis_size(a) > 1 for a in axes) and len(set(axes)) == len(axes)


def _payload(view: ProgramView) -> Told:
    """What a collective sends is what it reads."""
    p = view.program
    about = (p.kind == Kind.COLLECTIVE) & (p.comm_bytes > 0)
    return Told(about, p.comm_bytes == p.operand_bytes)


def _reads_payload(view: ProgramView) -> Told:
    p = view.program
    about = (p.kind == Kind.COLLECTIVE) & view.all_plain & (view.arity > 0) & ~view.launched
    about &= ~view.flagged(Flag.IN_PLACE) & ~_is(view, Collective.PERMUTE)
    whole = view.type_bytes[view.read] == p.comm_bytes[view.owner]
    read = view.summed(view.type_bytes)
    # A dimension of fewer elements than devices is gathered as a sum of arrays of its whole size.
    handed = _is(view, Collective.ALL_REDUCE) & (read < p.comm_bytes)
    handed &= read * group_sizes(p) >= p.comm_bytes
    return Told(about, view.some(whole) | (read == p.comm_bytes) | handed)


def _result(view: ProgramView) -> Told:
    """Bytes of a result by kind: as many as sent, or a group's as many, or a group's part.

    Where a group does not divide a dimension, parts are rounded up. What is gathered of a row with
    several results (the largest value and its place) is reduced again by those who read it.
    """
    p = view.program
    size = group_sizes(p)
    same = _is(view, Collective.ALL_REDUCE, Collective.PERMUTE, Collective.BROADCAST)
    gathers = _is(view, Collective.ALL_GATHER)
    scatters = _is(view, Collective.REDUCE_SCATTER)
    holds = np.where(same, p.result_bytes == p.comm_bytes, True)
    again = ~view.all_plain & (p.result_bytes == p.comm_bytes)
    holds &= ~gathers | again | (p.result_bytes == p.comm_bytes * size)
    holds &= ~scatters | (p.result_bytes * size == p.comm_bytes)
    for row in np.flatnonzero((gathers | scatters) & ~holds).tolist():
        holds[row] = _is_rounded(view, row, int(size[row]), gathers=bool(gathers[row]))
    return Told(same | gathers | scatters, holds)


def _is_rounded(view: ProgramView, row: int, size: int, *, gathers: bool) -> bool:
    """Whether one dimension of an operand is that of the result over the group, rounded up."""
    p = view.program
    own = p.shapes[p.shape[row]]
    for read in p.dependencies(row).tolist():
        other = p.shapes[p.shape[read]]
        whole, part = (own, other) if gathers else (other, own)
        if len(whole) == len(part) and is_split(whole, part, size):
            return True
    return False


def _types(view: ProgramView) -> Told:
    p = view.program
    about = (p.kind == Kind.COLLECTIVE) & view.all_plain & (view.arity > 0) & ~view.launched
    same = p.dtype[view.read] == p.dtype[view.owner]
    return Told(about & ~view.flagged(Flag.IN_PLACE), view.some(same))


def _reads_something(view: ProgramView) -> Told:
    about = np.isin(view.program.kind, (Kind.COLLECTIVE, Kind.SEND))
    return Told(about, np.diff(view.program.dep_start) > 0)


def _reduces(view: ProgramView) -> Told:
    p = view.program
    return Told(p.kind == Kind.COLLECTIVE, _is(view, *_REDUCE) == (p.op != OpClass.MOVE))


def _sends_read(view: ProgramView) -> Told:
    p = view.program
    about = (p.kind == Kind.SEND) & view.all_plain & (view.arity > 0)
    large = view.largest(view.type_bytes) >= p.comm_bytes
    return Told(about, large)


def _receives(view: ProgramView) -> Told:
    p = view.program
    return Told(p.kind == Kind.RECV, p.result_bytes == p.comm_bytes)


_OF_COMMUNICATION = (
    Rule(
        "axes",
        "collectives run over axes of the mesh that are longer than 1, each once",
        _axes_exist,
    ),
    Rule("payload", "a collective sends what it reads", _payload),
    Rule("payload-operand", "the payload is an operand of the collective", _reads_payload),
    Rule(
        "collective-result",
        "a gather's result is the group's, a scatter's its part, others' as sent",
        _result,
    ),
    Rule("collective-types", "a collective keeps the type of an operand", _types),
    Rule("communicates-something", "what is sent was computed or given", _reads_something),
    Rule("reduces", "all-reduce and reduce-scatter reduce, others move", _reduces),
    Rule("sends", "a message is no larger than what it is read from", _sends_read),
    Rule("receives", "what is received is as large as the message", _receives),
)


def broken_messages(programs: Sequence[Program]) -> list[BrokenRule]:
    """Channels whose SEND and RECV rows do not agree in bytes, route, type and runs of a step."""
    found: dict[int, tuple[list[_End], list[_End]]] = {}
    for number, p in enumerate(programs):
        rows = np.flatnonzero((p.kind == Kind.SEND) | (p.kind == Kind.RECV))
        for row in rows.tolist():
            ends = found.setdefault(int(p.channel[row]), ([], []))
            ends[int(p.kind[row] == Kind.RECV)].append((number, row))
    broken = []
    for channel, (sends, receives) in sorted(found.items()):
        told = {_sent(programs, end) for end in (*sends, *receives)}
        number, row = (sends or receives)[0]
        if not sends or not receives:
            what = "received and never sent" if receives else "sent and never received"
            broken.append(BrokenRule("messages", number, row, f"channel {channel} is {what}"))
        elif len(told) > 1:
            what = f"ends of channel {channel} differ in bytes, route or runs"
            broken.append(BrokenRule("messages", number, row, what))
    return broken


_End = tuple[int, int]


def _sent(programs: Sequence[Program], end: _End) -> tuple[object, ...]:
    program, row = programs[end[0]], end[1]
    route = program.routes[int(program.route[row])]
    return int(program.comm_bytes[row]), route, int(program.trips[row])


# Rules of products of matrices, attention and reductions: sizes, operands, work.

#: Algorithms of so many products of rounded numbers, as `flint.ir.product_types` names them.
_ALGORITHM = re.compile(r"(bf16|tf32|f16|f32|f64):[0-9]+$")
_SCORES = frozenset({OpClass.ATTENTION, OpClass.ATTENTION_BACKWARD})
_REDUCED = frozenset({OpClass.REDUCE, OpClass.SORT, OpClass.TOP_K, OpClass.SOFTMAX, OpClass.NORM})


def _has_dims(view: ProgramView) -> Mask:
    return np.asarray((view.program.dims > 0).all(axis=1))


def _product_dims(view: ProgramView) -> Told:
    about = view.of(OpClass.MATMUL) & view.works
    return Told(about & (view.elements > 0), _has_dims(view))


def _product_flops(view: ProgramView) -> Told:
    """What is added to a product is at most one operation an element."""
    d = ProductDims.of(view.program.dims)
    about = view.of(OpClass.MATMUL) & view.works & _has_dims(view)
    extra = view.program.flops - 2 * d.batch * d.m * d.n * d.k
    most = np.where(view.launched, view.elements, 0)
    return Told(about, (extra >= 0) & (extra <= most))


def _product_result(view: ProgramView) -> Told:
    d = ProductDims.of(view.program.dims)
    about = view.of(OpClass.MATMUL) & view.works & _has_dims(view)
    return Told(about, view.elements == d.batch * d.m * d.n * _groups(view, sums=True))


def _product_operands(view: ProgramView) -> Told:
    """Of (b, m, k) and (b, k, n) each is an operand, or both are the same one."""
    d = ProductDims.of(view.program.dims)
    about = view.of(OpClass.MATMUL) & view.works & _has_dims(view) & view.all_plain
    own = _groups(view, sums=False)
    found = [_reads(view, d.batch * d.m * d.k), _reads(view, d.batch * d.k * d.n * own)]
    few = (view.arity == 2) | ((view.arity == 1) & (d.m == d.n)) | view.launched
    return Told(about, found[0] & found[1] & few)


def _groups(view: ProgramView, *, sums: bool) -> Int64s:
    """How many matrices each product has as its result (`sums`) or as its second operand."""
    groups = [groups_of(name) for name in view.program.products]
    table = [g.number if g is not None and g.sums == sums else 1 for g in groups]
    return np.array(table, dtype=np.int64)[view.program.product]


def _reads(view: ProgramView, elements: Int64s) -> Mask:
    """Rows with an operand of so many elements."""
    return view.some(view.elements[view.read] == elements[view.owner])


def _product_bytes(view: ProgramView) -> Told:
    p = view.program
    about = view.of(OpClass.MATMUL) & view.works & view.all_plain & ~view.launched
    read = view.summed(view.type_bytes)
    again = (view.arity == 1) & (p.operand_bytes == 2 * read)
    return Told(about, (p.operand_bytes == read) | again)


def _product_type(view: ProgramView) -> Told:
    """The type in which a product multiplies is that of an operand, or an algorithm's.

    Complex ones name none.
    """
    p = view.program
    about = view.of(OpClass.MATMUL) & view.works & (view.elements > 0) & ~view.is_complex
    named = np.array([bool(n) for n in p.products], dtype=np.bool_)[p.product]
    base = [re.split("[:,]", name)[0] for name in p.products]
    is_of = np.array([[d == b for d in p.dtypes] for b in base], dtype=np.bool_)
    of_operand = view.some(is_of[p.product[view.owner], p.dtype[view.read]])
    of_operand |= np.array([bool(_ALGORITHM.match(n)) for n in p.products], dtype=np.bool_)[
        p.product
    ]
    return Told(about, named & (of_operand | ~view.all_plain | view.launched))


def _attention(view: ProgramView) -> Told:
    """Queries are an operand, and FLOPs are a whole number for each score."""
    d = AttentionDims.of(view.program.dims)
    about = view.of(_SCORES) & view.works & _has_dims(view) & view.all_plain
    scores = np.maximum(2 * d.heads * d.queries * d.keys, 1)
    holds = _reads(view, d.heads * d.queries * d.size) & (view.program.flops % scores == 0)
    return Told(about, holds & (view.program.flops >= scores * d.size))


def _convolution(view: ProgramView) -> Told:
    """m positions of n features in each of `batch` groups are the result."""
    d = ProductDims.of(view.program.dims)
    about = view.of(OpClass.CONVOLUTION) & view.works & _has_dims(view) & view.is_plain
    most = 2 * d.batch * d.m * d.n * d.k + np.where(view.launched, view.elements, 0)
    holds = (d.batch * d.m * d.n == view.elements) & (view.program.flops <= most)
    return Told(about, holds)


def _reduction_dims(view: ProgramView) -> Told:
    """Lists of norms that a framework launches have none."""
    about = view.of(OpClass.REDUCE) & view.works & (view.elements > 0) & (view.arity > 0)
    about &= ~view.launched | view.is_plain
    return Told(about, _has_dims(view))


def _reduction_result(view: ProgramView) -> Told:
    d = ReductionDims.of(view.program.dims)
    about = view.of(OpClass.REDUCE) & view.works & _has_dims(view)
    return Told(about, d.rows == view.elements)


def _reduction_operand(view: ProgramView) -> Told:
    """Windows keep the number of dimensions; then they may overlap or leave elements out."""
    d = ReductionDims.of(view.program.dims)
    about = view.of(OpClass.REDUCE) & view.works & _has_dims(view) & view.all_plain
    windows = view.some(view.rank[view.read] == view.rank[view.owner]) & (view.rank > 0)
    return Told(about & ~view.launched, windows | _reads(view, d.rows * d.reduced))


def _reduction_flops(view: ProgramView) -> Told:
    d = ReductionDims.of(view.program.dims)
    about = view.of(OpClass.REDUCE) & view.works & _has_dims(view)
    elements = np.maximum(d.rows * d.reduced, 1)
    return Told(about, (view.program.flops > 0) & (view.program.flops % elements == 0))


def _reduction_types(view: ProgramView) -> Told:
    p = view.program
    about = view.of(OpClass.REDUCE) & view.works & view.all_plain & ~view.launched
    same = p.dtype[view.read] == p.dtype[view.owner]
    return Told(about & (view.arity > 0), view.some(same))


def _work_has_flops(view: ProgramView) -> Told:
    classes = frozenset({OpClass.MATMUL, OpClass.REDUCE, OpClass.CONVOLUTION}) | _SCORES
    about = view.of(classes) & (view.program.kind == Kind.COMPUTE) & (view.elements > 0)
    return Told(about & (view.program.operand_bytes > 0), view.program.flops > 0)


_OF_PRODUCTS = (
    Rule("product-sizes", "a product has its sizes (batch, m, n, k)", _product_dims),
    Rule("product-flops", "a product has 2 x batch x m x n x k FLOPs", _product_flops),
    Rule("product-result", "the result of a product has batch x m x n elements", _product_result),
    Rule(
        "product-operands",
        "operands of a product have batch x m x k and batch x k x n elements",
        _product_operands,
    ),
    Rule("product-bytes", "a product reads its operands", _product_bytes),
    Rule("product-type", "a product has the type that it multiplies in", _product_type),
    Rule("attention", "attention has a query for each of its sizes", _attention),
    Rule("convolution", "the result of a convolution has its sizes", _convolution),
    Rule("reduction-sizes", "a reduction has its sizes (rows, reduced)", _reduction_dims),
    Rule(
        "reduction-result",
        "the result of a reduction has as many elements as rows",
        _reduction_result,
    ),
    Rule(
        "reduction-operand",
        "an operand of a reduction has rows x reduced elements",
        _reduction_operand,
    ),
    Rule(
        "reduction-flops",
        "FLOPs of a reduction are a whole number for each element",
        _reduction_flops,
    ),
    Rule("reduction-types", "a reduction keeps the type of an operand", _reduction_types),
    Rule("work", "products and reductions have FLOPs", _work_has_flops),
)


#: Every rule of single programs, in the order in which they are told.
ALL_RULES: tuple[Rule, ...] = (*RULES, *_OF_PRODUCTS, *_OF_COMMUNICATION, *_OF_LOOPS)
#: Rows of one program that are told for one rule, at most.
MOST_TOLD = 20


def broken_rules(workload: Workload) -> tuple[BrokenRule, ...]:
    """What in a workload breaks the rules that captured programs keep; empty if nothing does.

    The workload has to `verify`. Of each rule at most `MOST_TOLD` rows of a program are told.
    """
    found = [
        broken for i, program in enumerate(workload.programs) for broken in _of_program(program, i)
    ]
    return (*found, *broken_messages(workload.programs))


def is_valid(workload: Workload) -> bool:
    """Whether a workload verifies and keeps all rules."""
    try:
        workload.verify()
    except AssertionError:
        return False
    return not broken_rules(workload)


def _of_program(program: Program, number: int) -> list[BrokenRule]:
    if not len(program):
        return []
    view = ProgramView(program)
    return [
        BrokenRule(rule.name, number, row, _message(rule, program, row))
        for rule in ALL_RULES
        for row in np.flatnonzero(rule.tell(view).broken)[:MOST_TOLD].tolist()
    ]


def _message(rule: Rule, program: Program, row: int) -> str:
    found = program.row(row)
    shape = ",".join(map(str, found.shape))
    return f"row {row} ({found.opcode} {found.dtype}[{shape}]): {rule.says}"
