"""OpClass: what an operation is, whichever form it was read from; Collective: what it sends.

Each reader (StableHLO, HLO, PyTorch's operators) maps its own names to these classes once, and
passes say the class of the rows that they make. Passes and prices ask for classes, never for
names: a name (`Program.opcode`) is for people. There is no numpy here: what reads a cluster asks
for collectives.
"""

from __future__ import annotations

from enum import IntEnum


class OpClass(IntEnum):
    """What a row does. Of a collective it is what reduces (ADD, MAXIMUM, ...), or MOVE.

    Numbers are those of a `.flint` file: they are never given to another class.
    """

    UNKNOWN = 0  #: nothing is known of its work; it is never free
    OTHER = 1  #: its work is known, and it is of no other class
    # values: no work -----------------------------------------------------------------------------
    VALUE = 2  #: arguments, tuples, values that loops carry, other names of a value
    RESULT = 3  #: what the step returns; everything that it reads is alive
    JOIN = 4  #: the result of whichever branch is taken
    SAVED = 5  #: what a pass of a pipeline reads of an earlier pass of its microbatch
    STASH = 6  #: what a pipeline keeps for microbatches in flight
    TURN = 7  #: the end of a unit of a pipeline: it waits for rows and reads nothing of them
    NEIGHBOUR = 8  #: what a neighboring stage has sent
    ACCUMULATOR = 9  #: gradients of microbatches, added up
    HOST_VALUE = 10  #: an argument in the host's memory, or a value there as it is seen from a row
    #: one of several results of the row that it is a view of, or of an update, behind the row that changed it
    PART = 11
    FREED = 12  #: a program lets go of what this reads: its memory is free from here on
    BARRIER = 13  #: an optimization barrier: it waits for all that passes it, and views of these wait for it
    # made from nothing, or from a few scalars ------------------------------------------------------
    CONSTANT = 16
    IOTA = 17
    FILL = 18  #: zeros, ranges, numbers of devices
    RANDOM = 19
    # element by element ----------------------------------------------------------------------------
    ARITHMETIC = 32  #: a function of few instructions that no other class names
    FUNCTION = 33  #: a function of many instructions that no other class names
    ADD = 34
    SUBTRACT = 35
    MULTIPLY = 36
    DIVIDE = 37
    NEGATE = 38
    MAXIMUM = 39
    MINIMUM = 40
    COMPARE = 41  #: greater or less, and triangles of a matrix: what makes a mask of positions
    CONVERT = 42  #: a change of type
    REDUCE_PRECISION = 43
    EXPONENTIAL = 44
    LOGARITHM = 45
    POWER = 46
    TRIGONOMETRIC = 47  #: sine, cosine, tangent
    # copies of elements to places that are known beforehand ------------------------------------------
    BROADCAST = 64
    RESHAPE = 65
    REVERSE = 66
    SLICE = 67
    TRANSPOSE = 68
    COPY = 69
    # other copies ----------------------------------------------------------------------------------
    CONCATENATE = 80
    PAD = 81
    DYNAMIC_SLICE = 82  #: a part of an array, where an operand says
    UPDATE_SLICE = 83  #: a part of an array is written, where an operand says
    GATHER = 84  #: look-ups by index
    SCATTER = 85  #: writes and additions by index
    MOVE = 86  #: any other copy of elements
    UNPACK = 87  #: shards packed for a gather, or what was gathered taken apart (FSDP)
    ALL_SLICE = 89  #: each device keeps its part of a value that all of a group hold
    # many elements make one ------------------------------------------------------------------------
    REDUCE = 96
    REDUCE_SCATTERED = 97  #: selects by windows, and scatters
    SOFTMAX = 98  #: and its gradient, as one operator
    BATCH_NORM = 99  #: over a batch, with its statistics
    NORM = 100  #: layer, group and root-mean-square norms, and gradients of norms
    SCAN = 101  #: running sums
    # products of matrices --------------------------------------------------------------------------
    MATMUL = 112
    CONVOLUTION = 113
    CONVOLUTION_BACKWARD = 114  #: several products, of which `dims` holds one
    ATTENTION = 115  #: in one kernel; `dims` holds the first of its products
    ATTENTION_BACKWARD = 116
    # algorithms over a whole operand ------------------------------------------------------------------
    SORT = 128
    TOP_K = 129
    FFT = 130
    SOLVE = 131  #: factorisations and solutions of systems
    # kernels of other makers -----------------------------------------------------------------------
    CALL = 144  #: called by name: a product if it has dims, else unknown
    DECLARED = 150  #: written by hand, its work declared: `dims` are (1, transcendentals, 1, 1)
    COMPILED = 145  #: a fusion that a compiler had made before the program was read
    OPTIMIZER = 146  #: an update of parameters as one operator
    EFFECT = 147  #: must happen even if nothing reads its result: infeed, outfeed
    TO_HOST = 148  #: a copy to the host's memory
    FROM_HOST = 149  #: a copy from the host's memory
    DROPOUT = 151
    HOST = 152  #: what the host does before it launches, `measured_ns` long; on a stream of its own
    COMMUNICATION = 153  #: a measured kernel that communicates, how much and with whom is not known
    # kernels of several rows, as passes merge them ------------------------------------------------------
    FUSED = 160  #: element by element
    FUSED_LOOP = 161  #: which reads each operand of its shape where it writes
    FUSED_LAYOUT = 162  #: copies
    FUSED_ATTENTION = 163
    FUSED_ATTENTION_BACKWARD = 164
    FUSED_SOFTMAX = 165
    FUSED_NORM = 166
    FUSED_REDUCTION = 167
    FUSED_OPTIMIZER = 168


Classes = frozenset[OpClass]


def _between(first: OpClass, last: OpClass) -> Classes:
    return frozenset(c for c in OpClass if first <= c <= last)


#: Results made from nothing or from a few scalars.
GENERATED = _between(OpClass.CONSTANT, OpClass.RANDOM)
#: Each element of the result is computed from the elements at the same place of the operands.
ELEMENTWISE = _between(OpClass.ARITHMETIC, OpClass.TRIGONOMETRIC)
#: Element by element, in one or two instructions.
SHORT = _between(OpClass.ADD, OpClass.REDUCE_PRECISION) - {OpClass.DIVIDE} | {OpClass.ARITHMETIC}
#: Elements of a result are copies of elements of an operand, at places known beforehand.
LAYOUT = _between(OpClass.BROADCAST, OpClass.COPY)
#: Other copies of elements.
DATA_MOVEMENT = _between(OpClass.CONCATENATE, OpClass.UNPACK)
#: Many elements of an operand make one of the result.
REDUCTION = _between(OpClass.REDUCE, OpClass.BATCH_NORM)
#: One product of matrices, `dims` holds (batch, m, n, k).
PRODUCT = frozenset({OpClass.MATMUL, OpClass.CONVOLUTION, OpClass.CONVOLUTION_BACKWARD})
#: Attention in one kernel.
ATTENTION = frozenset(
    {
        OpClass.ATTENTION,
        OpClass.ATTENTION_BACKWARD,
        OpClass.FUSED_ATTENTION,
        OpClass.FUSED_ATTENTION_BACKWARD,
    }
)
#: Kernels of several products, of which `dims` holds one.
SEVERAL_PRODUCTS = ATTENTION | {OpClass.CONVOLUTION_BACKWARD}
#: Kernels that passes merged rows into.
MERGED = _between(OpClass.FUSED, OpClass.FUSED_OPTIMIZER)
#: Rows whose values lie in the host's memory.
ON_HOST = frozenset({OpClass.HOST_VALUE, OpClass.TO_HOST})


class Collective(IntEnum):
    """Kind of a COLLECTIVE row. `comm_bytes` is always the bytes of the rank's input."""

    NONE = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    PERMUTE = 5
    BROADCAST = 6
