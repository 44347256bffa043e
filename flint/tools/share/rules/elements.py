"""Rules of values, of what is computed element by element, and of what copies elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.dims import ReductionDims
from flint.ir.op_class import (
    ATTENTION,
    DATA_MOVEMENT,
    ELEMENTWISE,
    LAYOUT,
    MERGED,
    REDUCTION,
    OpClass,
)
from flint.ir.program import Collective, Flag, Kind
from flint.passes.work.formulas import NO_ARITHMETIC
from flint.tools.share.rules.view import (
    ProgramView,
    Rule,
    Shape,
    Told,
    has_equal_elements,
    is_broadcast,
    is_equal,
    is_joined,
    is_padded,
    is_permuted,
    is_within,
    spreads,
)

# Rules of what copies elements: their number, their order, their type.

#: Classes whose result is made of elements of the operand.
_COPIES = (LAYOUT | DATA_MOVEMENT) - {OpClass.UNPACK, OpClass.MOVE}


def _of_one(op: OpClass, holds: Callable[[Shape, Shape], bool]) -> Callable[[ProgramView], Told]:
    """The rule that the one operand of a class has a shape that fits to that of the result."""

    def tell(view: ProgramView) -> Told:
        about = view.of(op) & view.all_plain & ~view.launched & view.is_plain
        about &= ~_may_be_bits(view)
        links = view.links_of(about)
        return Told(about, (view.arity == 1) & view.every(~links | view.related(holds, links)))

    return tell


def _may_be_bits(view: ProgramView) -> Mask:
    """Values that are the same bits as another type: their elements need not be as many."""
    p = view.program
    other = p.dtype[view.read] != p.dtype[view.owner]
    return view.some(other) & view.of(OpClass.RESHAPE)


def _some(op: OpClass, holds: Callable[[Shape, Shape], bool]) -> Callable[[ProgramView], Told]:
    """The rule that one operand of a class has a shape that fits to that of the result."""

    def tell(view: ProgramView) -> Told:
        about = view.of(op) & view.works & view.all_plain & ~view.launched & view.is_plain
        links = view.links_of(about)
        return Told(about, view.some(view.related(holds, links)))

    return tell


def _concatenates(view: ProgramView) -> Told:
    """An operand that is there twice is one link: then the bytes that are read tell.

    A rotation over several devices is one as well: there parts are rounded up.
    """
    p = view.program
    about = view.of(OpClass.CONCATENATE) & view.all_plain & ~view.launched & (view.arity > 0)
    about &= ~view.exchanges
    links = view.links_of(about)
    fits = view.every(~links | view.related(is_joined, links))
    whole = (view.summed(view.elements) == view.elements) | (p.operand_bytes == view.type_bytes)
    return Told(about, fits & whole & (view.summed(view.elements) <= view.elements))


def _copied_types(view: ProgramView) -> Told:
    p = view.program
    about = view.of(_COPIES) & view.all_plain & (view.arity > 0) & view.is_plain
    about &= ~(view.launched & view.of(OpClass.COPY))
    same = p.dtype[view.read] == p.dtype[view.owner]
    return Told(about & ~_is_view_of_bits(view), view.some(same))


def _is_view_of_bits(view: ProgramView) -> Mask:
    """A row of VALUE kind whose operand has other types: a bit cast."""
    return ~view.works & view.of(OpClass.RESHAPE)


def _parts_read(view: ProgramView) -> Told:
    p = view.program
    about = view.of(frozenset({OpClass.SLICE, OpClass.DYNAMIC_SLICE})) & view.works & view.is_plain
    return Told(about & ~view.launched, p.operand_bytes == p.result_bytes)


def _whole_read(view: ProgramView) -> Told:
    p = view.program
    classes = frozenset({OpClass.TRANSPOSE, OpClass.REVERSE, OpClass.BROADCAST, OpClass.PAD})
    about = view.of(classes) & view.works & view.all_plain & ~view.launched & (view.arity > 0)
    read = view.summed(view.type_bytes)
    return Told(about, p.operand_bytes == read)


def _updates(view: ProgramView) -> Told:
    """Written are the elements of an operand, which are read as well."""
    p = view.program
    about = view.of(OpClass.UPDATE_SLICE) & view.works & view.all_plain & ~view.launched
    part = view.type_bytes[view.read] == p.result_bytes[view.owner]
    links = view.links_of(about)
    whole = view.some(view.related(is_equal, links))
    return Told(about, whole & view.some(part) & (p.operand_bytes == p.result_bytes))


def _gathers(view: ProgramView) -> Told:
    """Rows of elements and indices are read, at most as much as is returned and one index each."""
    p = view.program
    about = view.of(OpClass.GATHER) & view.works & view.all_plain & ~view.launched
    indices = p.operand_bytes - p.result_bytes
    index = view.some(view.type_bytes[view.read] == indices[view.owner])
    return Told(about & (p.result_bytes > 0), index)


def _indices(view: ProgramView) -> Told:
    """A part of an array is where whole numbers say: the other operands, of one element each."""
    p = view.program
    places = view.of(frozenset({OpClass.DYNAMIC_SLICE, OpClass.UPDATE_SLICE}))
    about = places & view.works & view.all_plain & ~view.launched & (not view.is_pipelined)
    needed = np.where(view.of(OpClass.UPDATE_SLICE), 2, 1)
    whole = [d.lstrip("us").startswith("int") for d in p.dtypes]
    is_index = (view.elements == 1) & np.array(whole, dtype=np.bool_)[p.dtype]
    others = view.summed((~is_index).astype(np.int64))
    return Told(about, (others <= needed) & (view.arity > needed))


def _index_sizes(view: ProgramView) -> Told:
    """Look-ups return rows of elements."""
    d = ReductionDims.of(view.program.dims)
    about = view.of(OpClass.GATHER) & view.works & (d.rows > 0) & view.is_plain
    return Told(about, d.rows * d.reduced == view.elements)


def _scatters(view: ProgramView) -> Told:
    """Rows of elements are written: they are an operand, and so are the indices that are read."""
    p = view.program
    d = ReductionDims.of(p.dims)
    about = view.of(OpClass.SCATTER) & view.works & (d.rows > 0) & view.all_plain & ~view.launched
    written = view.some(view.elements[view.read] == (d.rows * d.reduced)[view.owner])
    indices = p.operand_bytes - 2 * p.result_bytes
    return Told(about, written & view.some(view.type_bytes[view.read] == indices[view.owner]))


_OF_COPIES = (
    Rule(
        "reshape",
        "a reshape keeps the number of elements",
        _of_one(OpClass.RESHAPE, has_equal_elements),
    ),
    Rule("transpose", "a transpose permutes dimensions", _of_one(OpClass.TRANSPOSE, is_permuted)),
    Rule("reverse", "a reverse keeps the shape", _of_one(OpClass.REVERSE, is_equal)),
    Rule(
        "broadcast",
        "a broadcast keeps dimensions other than 1, in order",
        _of_one(OpClass.BROADCAST, is_broadcast),
    ),
    Rule("slice", "a slice is inside of its operand", _of_one(OpClass.SLICE, is_within)),
    Rule(
        "dynamic-slice",
        "a dynamic slice is inside of an operand",
        _some(OpClass.DYNAMIC_SLICE, is_within),
    ),
    Rule("pad", "a pad is around an operand, or cuts it", _some(OpClass.PAD, is_padded)),
    Rule("concatenate", "parts of a concatenation sum to it along one dimension", _concatenates),
    Rule("copied-types", "what copies elements keeps their type", _copied_types),
    Rule("parts-read", "a slice reads what it returns", _parts_read),
    Rule("whole-read", "a copy reads its operand", _whole_read),
    Rule("updates", "an update writes an operand into an array of the result's shape", _updates),
    Rule("indices", "a part of an array is where whole numbers say", _indices),
    Rule("look-ups", "look-ups return rows of elements", _index_sizes),
    Rule("scatters", "what is written by index is an operand, and so are indices", _scatters),
    Rule("gathers", "look-ups read what they return, and indices", _gathers),
)


# Rules of single values: types, bytes of results, who reads them.

#: Classes of rows that can have several results: then `result_bytes` are those of all.
SEVERAL_RESULTS = (
    REDUCTION
    | ATTENTION
    | MERGED
    | frozenset(
        {
            *(OpClass.UNKNOWN, OpClass.OTHER, OpClass.VALUE, OpClass.JOIN, OpClass.SAVED),
            *(OpClass.STASH, OpClass.RANDOM, OpClass.SLICE, OpClass.UNPACK, OpClass.SCATTER),
            *(OpClass.CONVOLUTION_BACKWARD, OpClass.SORT, OpClass.TOP_K, OpClass.SOLVE),
            *(OpClass.CALL, OpClass.DECLARED, OpClass.COMPILED),
            *(OpClass.OPTIMIZER, OpClass.DROPOUT),
        }
    )
)
#: Classes of rows that may write a part of an array.
IN_PART = frozenset({OpClass.UPDATE_SLICE, OpClass.SCATTER})
#: Rows without a value of their own.
NO_VALUE = frozenset({OpClass.RESULT, OpClass.TURN, OpClass.FREED, OpClass.EFFECT, OpClass.HOST})


def _types(view: ProgramView) -> Told:
    p = view.program
    about = (p.result_bytes > 0) & (p.kind != Kind.SEND)
    return Told(about, view.is_typed)


def _result_bytes(view: ProgramView) -> Told:
    p = view.program
    several = view.of(SEVERAL_RESULTS) | (p.kind == Kind.COLLECTIVE) | view.launched
    in_part = view.of(IN_PART) | view.flagged(Flag.IN_PLACE)
    in_part |= p.collective == Collective.PERMUTE
    about = view.is_typed & ~view.of(NO_VALUE) & (p.kind != Kind.SEND)
    holds = p.result_bytes == view.type_bytes
    holds |= several & (p.result_bytes > view.type_bytes)
    holds |= in_part & (p.result_bytes < view.type_bytes) & (p.result_bytes > 0)
    return Told(about, holds)


def _used(view: ProgramView) -> Told:
    """What a framework launches runs, whether the program reads it or the host."""
    p = view.program
    about = (p.kind == Kind.COMPUTE) & ~view.of(NO_VALUE) & ~view.launched & (not view.is_pipelined)
    return Told(about, (view.readers > 0) | view.is_yielded | view.flagged(Flag.IN_PLACE))


def _no_flops(view: ProgramView) -> Told:
    about = view.of(NO_ARITHMETIC - {OpClass.RANDOM, OpClass.SCATTER}) & ~view.launched
    return Told(about, view.program.flops == 0)


def _views(view: ProgramView) -> Told:
    p = view.program
    about = view.flagged(Flag.VIEW)
    return Told(about, (p.operand_bytes == 0) & (p.alias >= 0) & (p.flops == 0))


def _in_place(view: ProgramView) -> Told:
    """Frameworks write parts of buckets, and what is received is a part."""
    p = view.program
    about = view.flagged(Flag.IN_PLACE) & (p.alias >= 0) & view.works & ~view.launched
    alias = np.where(p.alias >= 0, p.alias, 0)
    same = (p.dtype[alias] == p.dtype) & (view.elements[alias] == view.elements)
    return Told(about & view.is_typed & view.is_plain[alias], same)


def _parameters_first(view: ProgramView) -> Told:
    p = view.program
    is_parameter = p.kind == Kind.PARAMETER
    return Told(is_parameter, np.cumsum(p.kind >= Kind.COMPUTE) == 0)


def _sources(view: ProgramView) -> Told:
    p = view.program
    about = (p.kind == Kind.PARAMETER) | view.of(frozenset({OpClass.CONSTANT, OpClass.IOTA}))
    return Told(about, (view.arity == 0) & (p.operand_bytes == 0))


_OF_VALUES = (
    Rule("types", "every value has a type whose width is known", _types),
    Rule(
        "result-bytes",
        "bytes of a result are its elements times the width of its type",
        _result_bytes,
    ),
    Rule("used", "what a row computes is read, goes on in a loop, or is an output", _used),
    Rule("no-flops", "what copies, makes or converts elements does no arithmetic", _no_flops),
    Rule("views", "a view moves no bytes and shares the storage of what it sees", _views),
    Rule("in-place", "what is written in place has the type of what it is written to", _in_place),
    Rule("parameters-first", "parameters come before all rows that work", _parameters_first),
    Rule("sources", "parameters, constants and ranges read nothing", _sources),
)


ONE = frozenset(
    {
        *(OpClass.NEGATE, OpClass.CONVERT, OpClass.REDUCE_PRECISION, OpClass.EXPONENTIAL),
        *(OpClass.LOGARITHM, OpClass.TRIGONOMETRIC),
    }
)
TWO = frozenset(
    {
        *(OpClass.ADD, OpClass.SUBTRACT, OpClass.MULTIPLY, OpClass.DIVIDE, OpClass.MAXIMUM),
        *(OpClass.MINIMUM, OpClass.COMPARE, OpClass.POWER),
    }
)
#: More operands than these are lists.
MOST_OPERANDS = 4
MORE = frozenset({OpClass.ARITHMETIC, OpClass.FUNCTION})
_FREE_OF_ARITHMETIC = frozenset({OpClass.CONVERT, OpClass.REDUCE_PRECISION})


def _arity(view: ProgramView) -> Told:
    holds = np.zeros(len(view), dtype=np.bool_)
    for classes, most in ((ONE, 1), (TWO, 2), (MORE, 3)):
        holds |= view.of(classes) & (view.arity >= 1) & (view.arity <= most)
    return Told(view.of(ELEMENTWISE) & ~view.launched, holds)


def _shapes(view: ProgramView) -> Told:
    """A framework's row is one operation on what it depends on if the bytes that it reads say so."""
    exact = view.program.operand_bytes == view.summed(view.type_bytes)
    about = view.of(ELEMENTWISE) & view.all_plain & (view.arity > 0) & (~view.launched | exact)
    about &= ~view.launched | (view.is_plain & ~view.flagged(Flag.IN_PLACE))
    about &= ~_takes_bits(view)
    links = view.links_of(about)
    fits = ~links | view.related(spreads, links)
    fits |= view.launched[view.owner] & view.related(has_equal_elements, links)
    whole = view.launched | view.some(view.related(is_equal, links))
    return Told(about, view.every(fits) & whole)


def _takes_bits(view: ProgramView) -> Mask:
    """Views of the same bytes as another type, of which there may be more or fewer elements."""
    other = view.program.dtype[view.read] != view.program.dtype[view.owner]
    same = view.type_bytes[view.read] == view.type_bytes[view.owner]
    is_view = view.flagged(Flag.VIEW) & (view.arity == 1) & view.every(other & same)
    return np.asarray(~view.works & is_view)


def _dtypes(view: ProgramView) -> Told:
    """Frameworks promote types, and gradients are summed in a wider one; others have one type."""
    p = view.program
    same = p.dtype[view.read] == p.dtype[view.owner]
    about = view.of((ONE | TWO) - {OpClass.CONVERT, OpClass.COMPARE}) & view.all_plain
    sums = view.some(p.op[view.read] == OpClass.ACCUMULATOR)
    holds = np.where(view.launched | sums, view.some(same), view.every(same))
    return Told(about & (view.arity > 0), holds)


def _chosen(view: ProgramView) -> Told:
    """Other functions choose by truth values; what they are of has the result's type.

    Complex numbers are made of real ones, and real ones are parts of them.
    """
    p = view.program
    same = p.dtype[view.read] == p.dtype[view.owner]
    about = view.of(MORE) & view.all_plain & ~view.launched & (view.arity > 0) & ~_is_bool(view)
    about &= ~_takes_bits(view) & ~view.is_complex & ~view.some(view.is_complex[view.read])
    return Told(about, view.every(same | _is_bool(view)[view.read]) & view.some(same))


def _compared(view: ProgramView) -> Told:
    p = view.program
    about = view.of(OpClass.COMPARE) & view.all_plain & ~view.launched & (view.arity == 2)
    types = p.dtype.astype(np.int64) + 1
    twice = view.summed(types)
    return Told(about, view.every(2 * types[view.read] == twice[view.owner]))


def _is_bool(view: ProgramView) -> Mask:
    names = [d in ("bool", "pred", "i1") for d in view.program.dtypes]
    return np.asarray(np.array(names, dtype=np.bool_)[view.program.dtype])


def _compare(view: ProgramView) -> Told:
    return Told(view.of(OpClass.COMPARE), _is_bool(view))


def _flops(view: ProgramView) -> Told:
    p = view.program
    about = view.of(ELEMENTWISE - _FREE_OF_ARITHMETIC) & view.works & view.is_plain
    elements = np.maximum(view.elements, 1)
    return Told(about, (p.flops > 0) & (p.flops % elements == 0) | (view.elements == 0))


def _operand_bytes(view: ProgramView) -> Told:
    """Operands that are read twice are one link: then bytes of one of them come on top."""
    p = view.program
    about = view.of(ELEMENTWISE) & view.works & view.all_plain & ~view.launched
    over = p.operand_bytes - view.summed(view.type_bytes)
    again = view.type_bytes[view.read] == over[view.owner]
    return Told(about, (over == 0) | view.some(again))


def _launched_bytes(view: ProgramView) -> Told:
    """What a framework's operation reads are some of the rows that it depends on."""
    p = view.program
    about = view.launched & view.works & view.of(ELEMENTWISE | {OpClass.MATMUL}) & view.is_plain
    about &= view.all_plain & (view.arity > 0) & (view.arity <= MOST_OPERANDS)
    about &= ~view.flagged(Flag.IN_PLACE | Flag.INDEXED)
    holds = np.ones(len(p), dtype=np.bool_)
    for row in np.flatnonzero(about).tolist():
        sums = {0}
        for read in p.dependencies(row).tolist():
            sums |= {s + times * int(view.type_bytes[read]) for s in sums for times in (1, 2)}
        holds[row] = int(p.operand_bytes[row]) in sums
    return Told(about, holds)


_OF_ELEMENTS = (
    Rule("arity", "an operation element by element has as many operands as its class", _arity),
    Rule(
        "elementwise-shapes",
        "operands element by element spread to the result, one has its shape",
        _shapes,
    ),
    Rule("elementwise-types", "a result has the type of an operand", _dtypes),
    Rule("choices", "what is chosen or computed of several operands has their type", _chosen),
    Rule("compared", "what is compared has one type", _compared),
    Rule("compare", "comparisons give truth values", _compare),
    Rule("elementwise-flops", "FLOPs are a whole number for each element", _flops),
    Rule("launched-bytes", "what is read are some of the operands", _launched_bytes),
    Rule("elementwise-bytes", "what is read are the operands, each once or twice", _operand_bytes),
)

#: Rules of values, of what is computed element by element, and of what copies elements.
RULES: tuple[Rule, ...] = (*_OF_VALUES, *_OF_ELEMENTS, *_OF_COPIES)
