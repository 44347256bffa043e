"""The golden table: operand shardings, result sharding, operation, and what must be communicated.

Every row is a program on an abstract mesh. The bytes are worked out by hand, next to the row, as
products of local sizes and the size of an element: what one device puts into the collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

import flint
from flint.ir.program import Collective, Kind, Program
from tests.auto_mesh import auto_mesh

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
P = jax.sharding.PartitionSpec
F32, BF16, I32, C64 = 4, 2, 4, 8

MESH = {"data": 2, "model": 4}
AR, AG = Collective.ALL_REDUCE, Collective.ALL_GATHER
RS, A2A = Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL
CP = Collective.PERMUTE
DATA_MODEL = P("data", "model")


@dataclass(frozen=True)
class Row:
    """`operands` are (shape, dtype, spec); `expected` are (kind, axes or route, bytes)."""

    name: str
    fn: Callable[..., Any]
    operands: tuple[Any, ...]
    result: Any
    expected: list[tuple[Collective, str, int]]
    mesh: dict[str, int] = field(default_factory=lambda: MESH)
    platform: str = "cpu"


def f32(shape: tuple[int, ...], *spec: Any) -> tuple[Any, ...]:
    return shape, jnp.float32, P(*spec)


def i32(shape: tuple[int, ...], *spec: Any) -> tuple[Any, ...]:
    return shape, jnp.int32, P(*spec)


def shard_map(body: Callable[..., Any], ins: Any, outs: Any, mesh: dict[str, int] = MESH) -> Any:
    """A `shard_map` whose mesh is the one of the row."""
    abstract = auto_mesh(tuple(mesh.values()), tuple(mesh))
    return jax.shard_map(body, mesh=abstract, in_specs=ins, out_specs=outs, check_vma=False)


def identity(x: Any) -> Any:
    return x * 1


def conv(x: Any, w: Any, stride: int = 1, padding: str = "SAME", **more: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=layout, **more
    )


def pool(x: Any, window: int, stride: int) -> Any:
    sizes, strides = (1, window, window, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, sizes, strides, "SAME")


def thirty(x: Any) -> Any:
    """30 of the 32 columns, sharded over both axes."""
    return lax.with_sharding_constraint(x[:, :30], DATA_MODEL)


def squared_sum(fn: Callable[..., Any], argument: int = 0) -> Callable[..., Any]:
    return jax.grad(lambda *args: jnp.sum(fn(*args) ** 2), argnums=argument)


# data has 2 devices, model 4. x is 16 x 32, under (data, model) a device holds 8 x 8.
X = (16, 32)
IMAGE, KERNEL = (4, 16, 16, 8), (3, 3, 8, 16)  # 4 x 16 x 16 x 8 under (data, model): 2 x 4 x 16 x 8

DOTS = [
    Row(
        "both operands sharded on the contracting dimension",
        jnp.dot,
        (f32((16, 32), None, "model"), f32((32, 64), "model", None)),
        P(),
        [(AR, "model", 16 * 64 * F32)],
    ),
    Row(
        "contracting dimension over two axes",
        jnp.dot,
        (f32((16, 32), None, ("data", "model")), f32((32, 64), ("data", "model"))),
        P(),
        [(AR, "data,model", 16 * 64 * F32)],
    ),
    Row(
        "contracting dimension, rows stay over data",
        jnp.dot,
        (f32((16, 32), "data", "model"), f32((32, 64), "model")),
        P("data"),
        [(AR, "model", 8 * 64 * F32)],
    ),
    Row(
        "contracting dimension, result sharded: reduce-scatter",
        jnp.dot,
        (f32((16, 32), None, "model"), f32((32, 64), "model")),
        P("model"),
        [(RS, "model", 16 * 64 * F32)],
    ),
    Row(
        "rows over data, columns over model",
        jnp.dot,
        (f32((16, 32), "data"), f32((32, 64), None, "model")),
        DATA_MODEL,
        [],
    ),
    Row(
        "batch dimension",
        partial(jnp.einsum, "bij,bjk->bik"),
        (f32((8, 16, 32), "model"), f32((8, 32, 16), "model")),
        P("model"),
        [],
    ),
    Row(
        "sharded weights, sharded batch (FSDP): pieces of the weight change places and are gathered",
        jnp.dot,
        (f32((256, 32), "data"), f32((32, 64), "data")),
        P("data"),
        [(CP, "8 pairs of data,model", 2048), (AG, "model", 2048)],
    ),
    Row(
        "column then row parallel (Megatron): one all-reduce",
        lambda x, v, w: jnp.maximum(x @ v, 0) @ w,
        (f32((16, 32), "data"), f32((32, 64), None, "model"), f32((64, 32), "model")),
        P("data"),
        [(AR, "model", 8 * 32 * F32)],
    ),
    Row(
        "bf16 halves the bytes",
        jnp.dot,
        (((16, 32), jnp.bfloat16, P(None, "model")), ((32, 64), jnp.bfloat16, P("model"))),
        P(),
        [(AR, "model", 16 * 64 * BF16)],
    ),
    Row(
        "gradient of a replicated weight over a sharded batch",
        squared_sum(jnp.dot, 1),
        (f32((16, 32), "data"), f32((32, 64))),
        P(),
        [(AR, "data", 32 * 64 * F32)],
    ),
]
REDUCTIONS = [
    Row(
        "sum over a sharded dimension",
        partial(jnp.sum, axis=1),
        (f32(X, "data", "model"),),
        P("data"),
        [(AR, "model", 8 * F32)],
    ),
    Row(
        "maximum over everything",
        jnp.max,
        (f32(X, "data", "model"),),
        P(),
        [(AR, "data,model", 4)],
    ),
    Row(
        "sum over an unsharded dimension",
        partial(jnp.sum, axis=1),
        (f32(X, ("data", "model")),),
        P(("data", "model")),
        [],
    ),
    Row(
        "sum into a sharded result: reduce-scatter",
        partial(jnp.sum, axis=0),
        (f32(X, "model"),),
        P("model"),
        [(RS, "model", 32 * F32)],
    ),
    Row(
        "softmax: a maximum and a sum for each row",
        partial(jax.nn.softmax, axis=1),
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [(AR, "model", 8 * F32), (AR, "model", 8 * F32)],
    ),
    Row(
        "argmax: partial values and indices are gathered",
        partial(jnp.argmax, axis=1),
        (f32(X, "data", "model"),),
        P("data"),
        [(AG, "model", 8 * F32), (AG, "model", 8 * I32)],
    ),
    Row(
        "mean of the loss over the batch",
        lambda x: jnp.mean(x * x),
        (f32(X, "data"),),
        P(),
        [(AR, "data", F32)],
    ),
]
RESHARDS = [
    Row(
        "gather one axis",
        identity,
        (f32(X, "data", "model"),),
        P("data"),
        [(AG, "model", 8 * 8 * F32)],
    ),
    Row(
        "gather both dimensions",
        identity,
        (f32(X, "data", "model"),),
        P(),
        [(AG, "model", 256), (AG, "data", 1024)],
    ),
    Row("slice", identity, (f32(X),), DATA_MODEL, []),
    Row(
        "all-to-all: an axis moves to another dimension",
        identity,
        (f32(X, "model"),),
        P(None, "model"),
        [(A2A, "model", 4 * 32 * F32)],
    ),
    Row(
        "all-to-all of the minor of two axes",
        identity,
        (f32(X, ("data", "model")),),
        P("data", "model"),
        [(A2A, "model", 2 * 32 * F32)],
    ),
    Row(
        "gather the minor axis",
        identity,
        (f32(X, ("data", "model")),),
        P("data"),
        [(AG, "model", 2 * 32 * F32)],
    ),
    Row(
        "permute: the same axes in another order",
        identity,
        (f32(X, ("data", "model")),),
        P(("model", "data")),
        [(CP, "8 pairs of data,model", 2 * 32 * F32)],
    ),
    Row(
        "permute between axes of one size",
        identity,
        (f32(X, "a"),),
        P("b"),
        [(CP, "16 pairs of a,b", 4 * 32 * F32)],
        mesh={"a": 4, "b": 4},
    ),
    Row(
        "a dimension of size 2 takes the whole axis",
        lambda x: x.reshape(2, 4, 32) * 1,
        (f32((8, 32), "x"),),
        P("x"),
        [],
        mesh={"x": 2},
    ),
    Row(
        "sub-axes: a reshape to 4 x 2 splits the axis of 8, a sum takes one part, a gather the other",
        lambda x: x.reshape(4, 2, 32).sum(1),
        (f32((8, 32), "x"),),
        P(),
        [(AR, "x:(4)2", 32 * F32), (AG, "x:(1)4", 32 * F32)],
        mesh={"x": 8},
    ),
]
LAYOUT = [
    Row(
        "transpose",
        jnp.transpose,
        (f32(X, "data", "model"),),
        P("model", "data"),
        [],
    ),
    Row(
        "reshape that splits a sharded dimension",
        lambda x: x.reshape(4, 4, 32),
        (f32(X, "model"),),
        P("model"),
        [],
    ),
    Row(
        "reshape that joins a major sharded dimension",
        lambda x: x.reshape(512),
        (f32(X, "model"),),
        P("model"),
        [],
    ),
    Row(
        "reshape that joins a minor sharded dimension gathers it",
        lambda x: x.reshape(512),
        (f32(X, None, "model"),),
        P(),
        [(AG, "model", 16 * 8 * F32)],
    ),
    Row(
        "elementwise", lambda x, y: jnp.tanh(x) + y, (f32(X, "data", "model"),) * 2, DATA_MODEL, []
    ),
    Row(
        "exact GELU",
        partial(jax.nn.gelu, approximate=False),
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [],
        platform="cuda",
    ),
    Row(
        "inverse error function",
        jax.scipy.special.erfinv,
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [],
        platform="cuda",
    ),
    Row("broadcast", lambda x: x[:, None] + jnp.zeros(X), (f32((16,), "data"),), P("data"), []),
]
SHIFTS = [
    Row(
        "slice that moves both ends: 6 kept of 8, two from either side",
        lambda x: x[:, 4:28],
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [(CP, "model+1 (no wrap)", 8 * 2 * F32), (CP, "model-1 (no wrap)", 8 * 2 * F32)],
    ),
    Row("strided slice", lambda x: x[:, ::2], (f32(X, "data", "model"),), DATA_MODEL, []),
    Row(
        "first half: shard 0 fills 0 and 1, shard 1 fills 2 and 3",
        lambda x: x[:, :16],
        (f32(X, "data", "model"),),
        DATA_MODEL,
        # 0 -> 1 sends its second half while 1 -> 2 sends its first: the permute spans the shard
        [(CP, "2 pairs of ranks", 128), (CP, "2 pairs of model", 256)],
    ),
    Row(
        "pad at the end: shards of 10 need up to 6 of the next",
        lambda x: jnp.pad(x, ((0, 0), (0, 8))),
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [(CP, "model-1 (no wrap)", 8 * 6 * F32)],
    ),
    Row(
        "roll by one: one column around the ring",
        partial(jnp.roll, shift=1, axis=1),
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [(CP, "model+1", 8 * 1 * F32)],
    ),
    Row(
        "roll back by 10 of shards of 8: 6 from the next, 2 from the one after",
        partial(jnp.roll, shift=-10, axis=1),
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [(CP, "model-1", 192), (CP, "model+2", 64)],
    ),
    Row(
        "reverse: whole shards change places",
        lambda x: x[:, ::-1],
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [(CP, "4 pairs of model", 8 * 8 * F32)],
    ),
    Row(
        "cumulative sum: the window covers everything",
        partial(jnp.cumsum, axis=1),
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [(AG, "model", 8 * 8 * F32)],
    ),
    Row(
        "concatenation: out of the dimension and back",
        lambda x, y: jnp.concatenate([x, y], 1),
        (f32(X, "data", "model"), f32(X, "data", "model")),
        DATA_MODEL,
        [(A2A, "model", 256), (A2A, "model", 256), (A2A, "model", 8 * 16 * F32)],
    ),
    Row(
        "update of one element of a cache: masked in place",
        lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 1),
        (f32(X, "data", "model"), f32((16, 1), "data"), i32(())),
        DATA_MODEL,
        [],
    ),
    Row(
        "update of 8 of 32 elements: the buffer is gathered",
        lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 1),
        (f32(X, "data", "model"), f32((16, 8), "data"), i32(())),
        DATA_MODEL,
        [(AG, "model", 8 * 8 * F32)],
    ),
]
# 30 columns over 4 devices: three shards of 8 and one of 6, padded; the result is gathered
UNEVEN = [
    Row(
        "uneven window: one column from either side",
        lambda x: lax.reduce_window(thirty(x), 0.0, lax.add, (1, 3), (1, 1), "SAME"),
        (f32(X, "data"),),
        P("data"),
        [
            (CP, "model+1 (no wrap)", 8 * 1 * F32),
            (CP, "model-1 (no wrap)", 8 * 1 * F32),
            (AG, "model", 8 * 8 * F32),
        ],
    ),
    Row(
        "uneven roll by 4: around the end 2 columns of padding are crossed as well",
        lambda x: jnp.roll(thirty(x), 4, 1),
        (f32(X, "data"),),
        P("data"),
        [
            (CP, "model+1", 8 * (4 + 2) * F32),
            (CP, "model+1", 8 * 4 * F32),
            (AG, "model", 8 * 8 * F32),
        ],
    ),
    Row(
        "uneven reverse: whole shards change places, then padding moves to the front",
        lambda x: thirty(x)[:, ::-1],
        (f32(X, "data"),),
        P("data"),
        [(CP, "4 pairs of model", 256), (CP, "model-1 (no wrap)", 64), (AG, "model", 256)],
    ),
]
WINDOWS = [
    Row(
        "3 x 3 convolution on split height: a row from either side",
        conv,
        (f32(IMAGE, "data", "model"), f32(KERNEL)),
        P("data", "model"),
        [(CP, "model+1 (no wrap)", 2 * 16 * 8 * F32), (CP, "model-1 (no wrap)", 2 * 16 * 8 * F32)],
    ),
    Row(
        "7 x 7 with stride 2: two rows from above, three from below",
        partial(conv, stride=2),
        (f32(IMAGE, "data", "model"), f32((7, 7, 8, 16))),
        P("data", "model"),
        [
            (CP, "model+1 (no wrap)", 2 * 2 * 16 * 8 * F32),
            (CP, "model-1 (no wrap)", 2 * 3 * 16 * 8 * F32),
        ],
    ),
    Row(
        "height over data and width over model: corners travel with the second exchange",
        conv,
        (f32(IMAGE, None, "data", "model"), f32(KERNEL)),
        P(None, "data", "model"),
        [
            (CP, "data+1 (no wrap)", 4 * 1 * 4 * 8 * F32),
            (CP, "data-1 (no wrap)", 4 * 1 * 4 * 8 * F32),
            (CP, "model+1 (no wrap)", 4 * 10 * 1 * 8 * F32),
            (CP, "model-1 (no wrap)", 4 * 10 * 1 * 8 * F32),
        ],
    ),
    Row(
        "1 x 1 with stride 2",
        partial(conv, stride=2),
        (f32(IMAGE, "data", "model"), f32((1, 1, 8, 16))),
        P("data", "model"),
        [],
    ),
    Row(
        "input features sharded",
        conv,
        (f32(IMAGE, "data", None, None, "model"), f32(KERNEL, None, None, "model")),
        P("data"),
        [(AR, "model", 2 * 16 * 16 * 16 * F32)],
    ),
    Row(
        "output features sharded",
        conv,
        (f32(IMAGE, "data"), f32(KERNEL, None, None, None, "model")),
        P("data", None, None, "model"),
        [],
    ),
    Row(
        "gradient of the kernel: halos forward, halos again, then the sum over all images and rows",
        squared_sum(conv, 1),
        (f32(IMAGE, "data", "model"), f32(KERNEL)),
        P(),
        [
            (CP, "model+1 (no wrap)", 1024),
            (CP, "model-1 (no wrap)", 1024),
            (CP, "model+1 (no wrap)", 1024),
            (CP, "model-1 (no wrap)", 1024),
            (AR, "data,model", 4608),
        ],
    ),
    Row(
        "3 x 3 max pool with stride 2: one row from below",
        partial(pool, window=3, stride=2),
        (f32(IMAGE, "data", "model"),),
        P("data", "model"),
        [(CP, "model-1 (no wrap)", 2 * 16 * 8 * F32)],
    ),
    Row(
        "pooling whose windows do not overlap, and its gradient",
        squared_sum(partial(pool, window=2, stride=2)),
        (f32(IMAGE, "data", "model"),),
        P("data", "model"),
        [],
    ),
]
INDEXING = [
    Row(
        "embedding: rows of the table over model",
        lambda table, ids: table[ids],
        (f32((64, 16), "model"), i32((32,), "data")),
        P("data"),
        [(AR, "model", 16 * 16 * F32)],
    ),
    Row(
        "embedding: columns of the table over model",
        lambda table, ids: table[ids],
        (f32((64, 16), None, "model"), i32((32,), "data")),
        P("data", "model"),
        [],
    ),
    Row(
        "scatter-add of sharded updates",
        lambda table, ids, u: table.at[ids].add(u),
        (f32((64, 16), "model"), i32((32,), "data"), f32((32, 16), "data")),
        P("model"),
        [(AR, "data", 16 * 16 * F32)],
    ),
]
ALGORITHMS = [
    Row(
        "sort along a sharded dimension: to the rows and back",
        partial(jnp.sort, axis=1),
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [(A2A, "model", 8 * 8 * F32), (A2A, "model", 2 * 32 * F32)],
    ),
    Row(
        "sort along a whole dimension", partial(jnp.sort, axis=1), (f32(X, "data"),), P("data"), []
    ),
    Row(
        "top_k of sharded scores",
        lambda x: lax.top_k(x, 2)[0],
        (f32(X, "data", "model"),),
        P("data"),
        [(AG, "model", 64)],
        platform="cuda",
    ),
    Row("FFT of whole rows", jnp.fft.fft, (f32(X, "data"),), P("data"), [(AG, "data", 2048)]),
    Row(
        "FFT of sharded rows",
        jnp.fft.fft,
        (f32(X, "data", "model"),),
        DATA_MODEL,
        [(AG, "model", 512), (AG, "data", 2048)],
    ),
    Row(
        "Cholesky in a library: matrices are gathered, the batch is not",
        partial(lax.linalg.cholesky, symmetrize_input=False),
        (f32((8, 8, 8), "data", "model"),),
        P("data"),
        [(AG, "model", 4 * 2 * 8 * F32)],
    ),
]
MANUAL = [
    Row(
        "psum",
        shard_map(lambda x: lax.psum(x, "model"), P("data", "model"), P("data")),
        (f32(X, "data", "model"),),
        P("data"),
        [(AR, "model", 8 * 8 * F32)],
    ),
    Row(
        "all_gather",
        shard_map(lambda x: lax.all_gather(x, "model", tiled=True), P("model"), P()),
        (f32(X, "model"),),
        P(),
        [(AG, "model", 4 * 32 * F32)],
    ),
    Row(
        "psum_scatter",
        shard_map(lambda x: lax.psum_scatter(x, "model", tiled=True), P(), P("model")),
        (f32(X),),
        P("model"),
        [(RS, "model", 16 * 32 * F32)],
    ),
    Row(
        "all_to_all",
        shard_map(
            lambda x: lax.all_to_all(x, "model", 1, 0, tiled=True), P("model"), P(None, "model")
        ),
        (f32(X, "model"),),
        P(None, "model"),
        [(A2A, "model", 4 * 32 * F32)],
    ),
    Row(
        "ppermute around the ring",
        shard_map(
            lambda x: lax.ppermute(x, "model", [(i, (i + 1) % 4) for i in range(4)]),
            P("model"),
            P("model"),
        ),
        (f32(X, "model"),),
        P("model"),
        [(CP, "model+1", 4 * 32 * F32)],
    ),
    Row(
        "psum over two axes",
        shard_map(lambda x: lax.psum(x, ("data", "model")), P("data", "model"), P()),
        (f32(X, "data", "model"),),
        P(),
        [(AR, "data,model", 8 * 8 * F32)],
    ),
]
TABLE = [
    *DOTS,
    *REDUCTIONS,
    *RESHARDS,
    *LAYOUT,
    *SHIFTS,
    *UNEVEN,
    *WINDOWS,
    *INDEXING,
    *ALGORITHMS,
    *MANUAL,
]


def traced(row: Row) -> Program:
    mesh = auto_mesh(tuple(row.mesh.values()), tuple(row.mesh))
    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.NamedSharding(mesh, spec))
        for shape, dtype, spec in row.operands
    ]
    result = jax.sharding.NamedSharding(mesh, row.result)
    trace = flint.trace(
        row.fn,
        row.mesh,
        *arguments,
        out_shardings=result,
        platform=row.platform,
    )
    return trace.program


def communication(program: Program) -> list[tuple[Collective, str, int]]:
    """(kind, axes or route, bytes of the rank's input) of every collective, in program order."""
    rows = [program.row(int(i)) for i in (program.kind == Kind.COLLECTIVE).nonzero()[0]]
    return [(r.collective, str(r.group or r.route), r.comm_bytes) for r in rows]


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_collectives(row: Row) -> None:
    program = traced(row)
    program.verify()
    found = communication(program)
    assert found == row.expected


def test_the_table_is_large() -> None:
    assert len(TABLE) >= 40
    assert len({row.name for row in TABLE}) == len(TABLE)
