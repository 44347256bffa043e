"""Prefill and decode pools: where caches are sent and received, how large, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from flint.backends.chakra import check, write
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import Flag, Kind
from flint.ir.workload import Workload
from flint.passes.pools.transfer import CacheLayout, Exchange
from flint.passes.profiles import rewrite
from flint.passes.work.totals import totals
from flint.steps.step import Step
from flint.tracing_pools import trace_pools
from tests.pool_steps import LAYERS, WIDTH, Case, rows, trips

CASE = Case()


@pytest.fixture(scope="module")
def traced() -> Workload:
    return CASE.trace()


#: Bytes of one layer's cache of one prefill rank: 8 requests on 2, 4 places, WIDTH on 2.
LAYER_BYTES = 4 * 4 * (WIDTH // 2) * 2


def test_two_classes_share_out_the_mesh(traced: Workload) -> None:
    assert [(c.name, c.program, dict(c.where)) for c in traced.classes] == [
        ("prefill", 0, {"pool": (0,)}),
        ("decode", 1, {"pool": (1, 2)}),
    ]
    assert traced.class_of_ranks().tolist() == [0] * 4 + [1] * 8
    assert traced.metadata["pools"]["caches"] == {"result[1]": "cache"}


def test_a_scan_sends_each_layer_when_it_is_there(traced: Workload) -> None:
    program = traced.programs[0]
    sends = rows(program, Kind.SEND)
    assert [trips(program, s) for s in sends] == [
        LAYERS,
        LAYERS,
    ]  # one row for each decode position
    for send in sends:
        [made] = send.deps
        assert program.row(made).opcode == "hlo.dynamic-update-slice"
        assert made < send.number and program.row(made).region == send.region >= 0
        assert send.comm_bytes == LAYER_BYTES // 2  # half of the requests


def test_a_scan_waits_for_each_layer_where_it_reads_it(traced: Workload) -> None:
    program = traced.programs[1]
    receives = rows(program, Kind.RECV)
    assert [trips(program, r) for r in receives] == [LAYERS, LAYERS]
    loop = program.regions[receives[0].region]
    assert loop.trip_count == LAYERS
    [read] = (r for r in rows(program, Kind.COMPUTE) if set(r.deps) >= {r.number for r in receives})
    assert read.opcode == "hlo.dynamic-slice" and read.region == receives[0].region
    for receive in receives:
        assert receive.deps == (receive.alias,) and receive.flags == Flag.IN_PLACE
        assert program.row(receive.alias).name == "cache"


def test_layers_in_a_list_are_sent_one_by_one() -> None:
    workload = CASE.but(forms=("list", "list")).trace()
    sender, receiver = workload.programs
    assert [s.name for s in rows(sender, Kind.SEND)][::2] == [
        f"result[1][{i}]" for i in range(LAYERS)
    ]
    made = [s.deps[0] for s in rows(sender, Kind.SEND)]
    assert made == sorted(made) and len(set(made)) == LAYERS
    first = [s.number for s in rows(sender, Kind.SEND)]
    assert first[0] < made[-1]  # the first layer goes before the last is there
    receives = rows(receiver, Kind.RECV)
    assert [r.name for r in receives][::2] == [f"cache[{i}]" for i in range(LAYERS)]
    assert {r.region for r in receives} == {-1}
    assert [r.channel for r in receives] == [s.channel for s in rows(sender, Kind.SEND)]


def test_a_stack_read_as_a_whole_is_received_in_a_loop_before() -> None:
    program = CASE.but(forms=("scan", "stacked")).trace().programs[1]
    receives = rows(program, Kind.RECV)
    loop = program.regions[receives[0].region]
    assert (loop.trip_count, loop.parent, loop.stop - loop.start) == (LAYERS, -1, 2)
    assert loop.name == "receive cache"


def test_decoding_in_a_loop_waits_for_all_layers_once() -> None:
    program = CASE.but(tokens=5).trace().programs[1]
    receives = rows(program, Kind.RECV)
    assert [trips(program, r) for r in receives] == [LAYERS, LAYERS]
    outer = next(r for r in program.regions if r.trip_count == 5)
    assert receives[-1].number < outer.start
    carry = next(r for r in rows(program, Kind.VALUE) if receives[0].number in r.deps)
    assert carry.opcode == "hlo.carried" and carry.region >= 0


def test_a_stack_made_as_a_whole_is_sent_as_a_whole() -> None:
    sender, receiver = CASE.but(forms=("stacked", "scan")).trace().programs
    sends, receives = rows(sender, Kind.SEND), rows(receiver, Kind.RECV)
    assert [trips(sender, s) for s in sends] == [trips(receiver, r) for r in receives] == [1, 1]
    assert sends[0].comm_bytes == LAYERS * LAYER_BYTES // 2
    assert max(r.number for r in receives) < min(r.start for r in receiver.regions)


def test_an_argument_that_is_only_returned_is_received_before_the_return() -> None:
    case = CASE.but(mesh="pool=2,data=2,model=2", forms=("scan", "stacked"))
    decode = Step(lambda cache, x: (cache, x + 1), (*case.decode().args, case.array((4,))))
    pools = case.pools()
    workload = trace_pools(type(pools)(**vars(pools) | {"decode": decode}), case.mesh)
    program = workload.programs[1]
    workload.verify()
    [receive] = rows(program, Kind.RECV)
    assert receive.number in program.row(len(program) - 1).deps


def test_an_argument_that_nothing_reads_is_received_too() -> None:
    case = CASE.but(mesh="pool=2,data=2,model=2", forms=("scan", "stacked"))
    step = Step(jax.jit(lambda cache, x: x + 1, keep_unused=True), (*case.decode().args, 1.0))
    pools = case.pools()
    workload = trace_pools(type(pools)(**vars(pools) | {"decode": step}), case.mesh)
    workload.verify()
    [receive] = rows(workload.programs[1], Kind.RECV)
    assert receive.comm_bytes == LAYER_BYTES


SHARDINGS = {
    "equal": (P("data", None, "model"), P("data", None, "model")),
    "heads on fewer ranks": (P(None, None, ("data", "model")), P("data", None, "model")),
    "heads on more ranks": (P("data", None, "model"), P(None, None, ("data", "model"))),
    "replicated senders": (P("data"), P("data", None, "model")),
    "replicated receivers": (P("data", None, "model"), P("data")),
    "swapped": (P("data", None, "model"), P("model", None, "data")),
    "another order": (P(None, None, ("data", "model")), P(None, None, ("model", "data"))),
    "places on ranks": (P("data", None, "model"), P("data", "model")),
}


#: The same rows send a layer out of a scan and one of a list: of those one that is cut and one that is not.
RESHARDED = [("data=2,pool=3,model=2", name, "scan") for name in SHARDINGS]
RESHARDED += [("pool=2,data=2,model=2", name, "list") for name in ("equal", "swapped")]


@pytest.mark.parametrize(("mesh", "specs", "form"), RESHARDED)
def test_every_resharding_checks(mesh: str, specs: str, form: str, tmp_path: Path) -> None:
    workload = CASE.but(mesh=mesh, specs=SHARDINGS[specs], forms=(form, form)).trace()
    for granularity in ("op", "kernel"):
        write(rewrite(workload, granularity=granularity), tmp_path / granularity)
        report = check(tmp_path / granularity)
        assert report.ok and report.proved == "any-times", (report.findings, report.doubt)


@pytest.mark.parametrize(
    ("pool", "prefill", "counts"),
    [
        (2, (0,), (1, 1)),
        (4, (0,), (3, 1)),
        (4, (0, 1), (1, 1)),
        (4, (1, 2, 3), (1, 3)),
        (5, (0, 2), (3, 2)),
    ],
)
def test_positions_serve_each_other(
    pool: int, prefill: tuple[int, ...], counts: tuple[int, int], tmp_path: Path
) -> None:
    """Messages of one rank for one layer, and that what is sent is what is received."""
    case = CASE.but(mesh=f"pool={pool},data=2", specs=(P("data"), P("data")), requests=(12, 36))
    workload = case.trace(prefill_positions=prefill)
    found = [totals(p).communication for p in workload.programs]
    messages = [next(c for c in of if c.kind in ("send", "recv")) for of in found]
    assert tuple(m.count for m in messages) == tuple(LAYERS * c for c in counts)
    requests_each = 12 // counts[0]
    layer = requests_each // 2 * 4 * WIDTH * 2
    assert [m.comm_bytes for m in messages] == [LAYERS * c * layer for c in counts]
    assert len(prefill) * messages[0].comm_bytes == (pool - len(prefill)) * messages[1].comm_bytes
    write(workload, tmp_path / "out")
    assert check(tmp_path / "out").ok


def test_the_file_holds_it_all(traced: Workload) -> None:
    data = traced.to_bytes()
    assert Workload.from_bytes(data).to_bytes() == data == CASE.trace().to_bytes()


def refused(case: Case, code: str, *words: str, **options: Any) -> None:
    with pytest.raises(FlintError) as caught:
        case.trace(**options)
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)


def test_axis_and_positions_that_do_not_fit() -> None:
    refused(CASE, "FL240", "no axis 'pods'", axis="pods")
    refused(CASE, "FL240", "do not divide", prefill_positions=(0, 3))
    refused(CASE, "FL240", "do not divide", prefill_positions=(0, 1, 2))
    refused(CASE, "FL240", "do not divide", decode_positions=(1,))
    refused(CASE, "FL240", "do not divide", decode_positions=(0, 1, 2))


def test_steps_sharded_over_the_pools() -> None:
    over = CASE.but(specs=(P("pool"), P("pool")), requests=(12, 12))
    refused(over, "FL240", "the prefill step is sharded over 'pool'")
    refused(
        CASE.but(specs=(P("data"), P("pool")), requests=(12, 12)),
        "FL240",
        "the decode step",
        "cache",
    )


@pytest.mark.parametrize(
    "across",
    [lambda x: jax.lax.psum(x, "pool"), lambda x: jax.lax.ppermute(x, "pool", [(0, 1), (1, 0)])],
    ids=["sum", "messages"],
)
def test_what_goes_over_the_pools_is_refused(across: Callable[[Any], Any]) -> None:
    def step(weights: Any, tokens: Any) -> Any:
        whole = jax.shard_map(
            across, mesh=CASE.abstract, in_specs=P(), out_specs=P(), check_vma=False
        )
        return whole(weights), weights

    pools = CASE.pools()
    prefill = Step(step, pools.prefill.args)
    with pytest.raises(FlintError, match="the axis of the pools") as caught:
        trace_pools(type(pools)(**vars(pools) | {"prefill": prefill}), CASE.mesh)
    assert caught.value.code == "FL240" and "test_pools.py" in str(caught.value)


def test_names_that_do_not_fit() -> None:
    refused(CASE, "FL240", "sends nothing", caches={})
    refused(
        CASE, "FL240", "no result of the prefill step named 'result[2]'", caches={"result[2]": "c"}
    )
    refused(CASE, "FL240", "no argument of the decode step", "cache", caches={"result[1]": "kv"})
    refused(CASE, "FL240", "2 results", "1 arguments", caches={"result[*]": "cache"})
    twice = {"result[1]": "cache", "result[1]*": "cache"}
    refused(CASE, "FL240", "two caches fill", caches=twice)
    refused(CASE, "FL240", "not a key of caches", batch_dimension={"result": 1})


def test_a_function_is_no_step() -> None:
    pools = CASE.pools()
    with pytest.raises(
        FlintError, match="decode of flint.Disaggregated is function, not a flint.Step"
    ):
        trace_pools(type(pools)(**vars(pools) | {"decode": lambda x: x}), CASE.mesh)


def test_caches_that_cannot_be_resharded() -> None:
    shardings = 'sharded [{}, {"data"}, {}, {"model"}]'
    refused(
        CASE.but(requests=(6, 8)), "FL245", "6 requests on 2 shards", "multiple of 4", shardings
    )
    refused(CASE.but(requests=(16, 6)), "FL245", "6 places for 8 requests")
    refused(CASE.but(places=(8, 4)), "FL245", "dimension 2 is 8 in one and 4", shardings)
    refused(CASE.but(width=(16, 32)), "FL245", "dimension 3 is 16 in one and 32", shardings)
    refused(CASE.but(dtypes=(jnp.bfloat16, jnp.float32)), "FL245", "bfloat16, the other float32")
    refused(CASE, "FL245", "has no dimension 4", batch_dimension=4)
    refused(CASE, "FL245", "dimension 2 is 4 in one and 8", length_dimension=None)
    listed = CASE.but(forms=("list", "scan"))
    refused(listed, "FL245", "one has 3 dimensions, the other 4", caches={"result[1][0]": "cache"})


def test_shards_of_different_sizes() -> None:
    mesh = Mesh.parse("pool=2,data=3,model=2")
    data, model = (CacheLayout((4, 16), ((), (AxisRef(axis),))) for axis in ("data", "model"))
    with pytest.raises(
        FlintError, match=r"dimension 1 of sent \(16\) is not a multiple of 3"
    ) as caught:
        Exchange(mesh, data, model, ("sent", "received"))
    assert caught.value.code == "FL245"
    assert caught.value.place == (
        'sent [4, 16] sharded [{}, {"data"}] -> received [4, 16] sharded [{}, {"model"}]'
    )
    with pytest.raises(FlintError, match="dimension 1 of received"):
        Exchange(mesh, model, data, ("sent", "received"))


def test_an_axis_cut_in_ways_that_do_not_fit() -> None:
    mesh = Mesh.parse("pool=2,x=6")
    two, three = (CacheLayout((6,), ((AxisRef("x", 1, size),),)) for size in (2, 3))
    exchange = Exchange(mesh, two, three, ("sent", "received"))
    with pytest.raises(FlintError, match="cut axis 'x' after 2 and after 3 parts") as caught:
        exchange.pieces()
    assert caught.value.code == "FL245"
