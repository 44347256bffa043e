"""Memory of a step on small programs whose peak is counted by hand. A value has 64 bytes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from flint.backends.cost.memory.memory import MemoryUse, memory_use, step_memory
from flint.cluster.models import Cluster
from flint.ir.made_by import CompilerMemory
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, RegionKind
from flint.ir.workload import Workload
from flint.passes.base import run_passes
from flint.passes.fusion.kernels import FuseKernels
from tests.program_text import Rows, group
from tests.saved_activations import saved_activation_bytes


def used(rows: Rows) -> MemoryUse:
    return memory_use(rows.build())


def peak(rows: Rows) -> int:
    """The peak in values."""
    return used(rows).peak_bytes // 64


def test_values_live_until_their_last_reader() -> None:
    rows = Rows()
    a = rows.parameter()
    b = rows.op("sort", a)
    c = rows.op("sort", b)
    rows.result(rows.op("sort", c))
    assert peak(rows) == 3  # the argument stays; of the chain an operand and its result
    use = used(rows)
    assert (use.at.row, use.at.opcode) == (2, "stablehlo.sort")
    assert use.breakdown == {"parameters": 64, "temporaries": 128}


def test_elementwise_operations_write_over_what_they_read_last() -> None:
    rows = Rows()
    a = rows.op("sort", rows.parameter())
    rows.result(rows.op("add", a))
    assert peak(rows) == 2
    rows = Rows()
    a = rows.op("sort", rows.parameter())
    b = rows.op("add", a)
    rows.result(rows.op("sort", a, b))  # a is read again: the sum needs memory of its own
    assert peak(rows) == 4


def test_operators_of_pytorch_make_new_tensors() -> None:
    rows = Rows()
    a = rows.op("aten.sort", rows.parameter())
    rows.result(rows.op("aten.add", a))
    assert peak(rows) == 3


def test_arguments_are_overwritten_only_if_donated() -> None:
    for flags, expected in ((Flag(0), 2), (Flag.DONATED, 1)):
        rows = Rows()
        rows.result(rows.op("add", rows.parameter(flags=flags)))
        assert peak(rows) == expected


def test_results_take_the_place_of_donated_arguments() -> None:
    rows = Rows()
    a = rows.parameter(flags=Flag.DONATED)
    b = rows.op("sort", a)
    rows.result(rows.op("sort", b))
    assert peak(rows) == 2  # nothing reads the argument when the second result is made
    rows = Rows()
    a = rows.parameter(flags=Flag.DONATED)
    b = rows.op("sort", a)
    c = rows.op("sort", b)
    rows.result(b, c, rows.op("sort", a, c))
    assert peak(rows) == 4  # only one of three results can


@pytest.mark.parametrize("result", [{"dtype": "bf16", "shape": (64,)}, {"shape": (4, 4, 2)}])
def test_results_of_another_type_or_shape_have_places_of_their_own(result: dict[str, Any]) -> None:
    """Of as many bytes as the donated argument: JAX aliases arrays of one type and shape alone."""
    rows = Rows()
    b = rows.op("sort", rows.parameter(flags=Flag.DONATED))
    rows.result(rows.op("sort", b, **result))
    assert peak(rows) == 3


def test_views_keep_what_they_view() -> None:
    rows = Rows()
    a = rows.op("sort", rows.parameter())
    seen = rows.op("reshape", a, kind=Kind.VALUE, flags=Flag.VIEW, alias=a)
    b = rows.op("sort", rows.parameter())
    rows.result(rows.op("sort", seen, b))
    assert peak(rows) == 5


def test_updates_in_place_need_no_memory_and_a_copy_where_the_old_value_is_read() -> None:
    rows = Rows()
    a, update = rows.op("iota"), rows.parameter()
    b = rows.op("dynamic_update_slice", a, update, flags=Flag.IN_PLACE, alias=a, result_bytes=4)
    rows.result(b)
    assert peak(rows) == 2
    rows = Rows()
    a, update = rows.op("iota"), rows.parameter()
    b = rows.op("dynamic_update_slice", a, update, flags=Flag.IN_PLACE, alias=a, result_bytes=4)
    rows.result(a, b)
    assert peak(rows) == 3  # all of the updated copy, not the 4 bytes that change


def test_a_loop_holds_what_it_reads_and_updates_what_it_carries() -> None:
    rows = Rows()
    outside, initial = rows.op("sort", rows.parameter()), rows.op("iota")
    rows.begin_region(RegionKind.LOOP, 10)
    carried = rows.op("while.carry", initial, kind=Kind.VALUE, flags=Flag.VIEW, alias=initial)
    read = rows.op("sort", outside)
    produced = rows.op("add", carried, read)
    rows.op("sort", produced)
    rows.end_region([(carried, produced)])
    rows.result(produced)
    # the argument, the value from outside, the carried value, and one inside of the body
    assert peak(rows) == 4


def test_a_loop_that_reads_its_old_value_late_copies_the_new_one() -> None:
    rows = Rows()
    initial = rows.op("iota")
    rows.begin_region(RegionKind.LOOP, 10)
    carried = rows.op("while.carry", initial, kind=Kind.VALUE, flags=Flag.VIEW, alias=initial)
    produced = rows.op("sort", carried)
    rows.op("sort", carried, produced)
    rows.end_region([(carried, produced)])
    rows.result(produced)
    assert peak(rows) == 3


def test_what_a_loop_passes_on_unchanged_is_not_copied() -> None:
    rows = Rows()
    weights = rows.parameter(result_bytes=6400, shape=(1600,))
    initial = rows.op("iota")
    rows.begin_region(RegionKind.LOOP, 10)
    same = rows.op(
        "while.carry", weights, kind=Kind.VALUE, flags=Flag.VIEW, alias=weights, result_bytes=6400
    )
    carried = rows.op("while.carry", initial, kind=Kind.VALUE, flags=Flag.VIEW, alias=initial)
    part = rows.op("dynamic_slice", same)
    produced = rows.op("add", carried, part)
    rows.end_region([(same, same), (carried, produced)])
    rows.result(produced)
    assert used(rows).peak_bytes == 6400 + 2 * 64


def test_nested_loops_hold_inner_and_outer_values() -> None:
    rows = Rows()
    a = rows.op("sort", rows.parameter())
    rows.begin_region(RegionKind.LOOP, 3)
    rows.begin_region(RegionKind.LOOP, 5)
    rows.op("sort", a)
    rows.end_region()
    rows.op("sort", rows.parameter())
    rows.end_region()
    assert peak(rows) == 4  # both arguments, `a` for the next turns, and one result


def test_only_the_branch_that_runs_needs_memory() -> None:
    rows = Rows()
    a = rows.parameter()
    taken = []
    for trips, size in ((0, 6400), (1, 64)):
        rows.begin_region(RegionKind.BRANCH, trips, choice=0)
        taken.append(rows.op("sort", a, result_bytes=size))
        rows.end_region()
    joined = rows.op("case.join", a, *taken, kind=Kind.VALUE)
    rows.result(rows.op("sort", joined))
    assert peak(rows) == 3


def test_what_memory_is_for() -> None:
    rows = Rows()
    weight = rows.parameter(name="params['w']", flags=Flag.DONATED)
    moment = rows.parameter(name="m['w']", flags=Flag.DONATED)
    tokens = rows.parameter(name="tokens", dtype="int32")
    gathered = rows.op(
        "sdy.all_gather",
        weight,
        kind=Kind.COLLECTIVE,
        collective=Collective.ALL_GATHER,
        group=group("x"),
        comm_bytes=8,
        phase=Phase.FORWARD,
    )
    saved = rows.op("dot", gathered, tokens, phase=Phase.FORWARD)
    gradient = rows.op("dot", saved, gathered, phase=Phase.BACKWARD)
    rows.result(rows.op("add", weight, moment, gradient, phase=Phase.OPTIMIZER))
    use = used(rows)
    assert use.breakdown == dict.fromkeys(
        ["parameters", "optimizer_state", "inputs", "gradients", "saved_activations", "gathered"],
        64,
    )


def test_the_memory_of_a_step_is_that_of_its_kernels() -> None:
    rows = Rows()
    a = rows.op("sort", rows.parameter(), result_bytes=640)
    wide = rows.op(
        "broadcast_in_dim", a, result_bytes=6400
    )  # never leaves the kernel that reads it
    rows.result(rows.op("reduce", wide))
    program = rows.build()
    assert memory_use(program).peak_bytes == 64 + 640 + 6400
    (use,) = step_memory(Workload.single(program))
    assert use.peak_bytes == 64 + 640 + 64


def test_the_fill_of_a_mask_is_no_array_that_waits_outside_of_a_loop() -> None:
    rows = Rows()
    x = rows.parameter()
    low = rows.op("constant", kind=Kind.VALUE, shape=(), result_bytes=4, operand_bytes=0)
    wide: dict[str, Any] = {"shape": (160,), "result_bytes": 640}
    fill = rows.op("broadcast_in_dim", low, operand_bytes=4, **wide)
    rows.begin_region(RegionKind.LOOP, 3)
    row = rows.op("while.carry", x, kind=Kind.VALUE, alias=x)
    mask = rows.op("while.carry", fill, kind=Kind.VALUE, flags=Flag.VIEW, alias=fill, **wide)
    masked = rows.op("add", rows.op("broadcast_in_dim", row, **wide), mask, **wide)
    made = rows.op("reduce", masked)
    rows.end_region(carries=((row, made), (mask, mask)))
    rows.result(made)
    program = rows.build()
    assert memory_use(run_passes(program, [FuseKernels()])).peak_bytes >= 640
    (use,) = step_memory(Workload.single(program))
    assert use.peak_bytes < 640


def gather(rows: Rows, read: int, scope: str = "") -> int:
    kind, collective = Kind.COLLECTIVE, Collective.ALL_GATHER
    columns: dict[str, Any] = {"group": group("x"), "comm_bytes": 64, "result_bytes": 512}
    return rows.op("sdy.all_gather", read, kind=kind, collective=collective, scope=scope, **columns)


def loop_that_gathers(trips: int, *, sliced: bool) -> list[MemoryUse]:
    """Memory without and with gathering ahead, of weights or of the part that a counter says."""
    rows = Rows()
    x, w = rows.parameter(), rows.parameter()
    rows.begin_region(RegionKind.LOOP, trips)
    turn = rows.op("while.carry", kind=Kind.VALUE, result_bytes=4, operand_bytes=0)
    row = rows.op("while.carry", x, kind=Kind.VALUE, alias=x)
    part = rows.op("dynamic_slice", w, turn) if sliced else w
    made = rows.op("sort", rows.op("sort", row), gather(rows, part))
    following = rows.op("add", turn, result_bytes=4, operand_bytes=8)
    rows.end_region(carries=((turn, following), (row, made)))
    rows.result(made)
    program = rows.build()
    return [memory_use(program, ahead=ahead) for ahead in (False, True)]


def test_a_loop_that_gathers_ahead_has_two_layers() -> None:
    once, often = loop_that_gathers(1, sliced=True), loop_that_gathers(3, sliced=True)
    assert once[0].peak_bytes == once[1].peak_bytes  # no other layer to gather for
    assert often[1].breakdown["gathered"] == 1024
    assert often[1].peak_bytes - often[0].peak_bytes in (512, 512 + 64)


def test_a_loop_that_gathers_the_same_weights_in_each_turn_is_none_of_layers() -> None:
    plain, ahead = loop_that_gathers(3, sliced=False)
    assert ahead.peak_bytes == plain.peak_bytes
    assert ahead.breakdown["gathered"] == 512


def test_layers_that_are_written_out_are_gathered_when_the_one_before_begins() -> None:
    rows = Rows()
    x, w = rows.parameter(), rows.parameter()
    for layer in range(3):
        scope = f"layer{layer}"
        x = rows.op("sort", rows.op("sort", x, scope=scope), gather(rows, w, scope), scope=scope)
    rows.result(x)
    program = rows.build()
    plain, ahead = (memory_use(program, ahead=ahead) for ahead in (False, True))
    assert [u.breakdown["gathered"] for u in (plain, ahead)] == [512, 1024]


def test_it_says_whether_it_fits() -> None:
    chip = Cluster.load("h100-dgx").chip
    rows = Rows()
    rows.parameter(result_bytes=int(chip.memory_bytes.value))
    fits = memory_use(rows.build(), chip)
    assert fits.fits and fits.capacity_bytes == fits.peak_bytes
    rows.parameter()
    assert not memory_use(rows.build(), chip).fits


def test_activations_wait_for_the_backward_pass() -> None:
    rows = Rows()
    x = rows.parameter()
    first = rows.op("sort", x, phase=Phase.FORWARD)
    second = rows.op("sort", first, phase=Phase.FORWARD)
    rows.op("sort", second, phase=Phase.FORWARD)
    stash = rows.op("pipeline.stash", kind=Kind.VALUE, result_bytes=1000)
    rows.op("sort", first, phase=Phase.BACKWARD)
    rows.result(stash)
    assert saved_activation_bytes(rows.build()) == 64 + 1000


def test_kernels_with_several_results_write_over_what_they_read_last() -> None:
    rows = Rows()
    a, b = rows.parameter(flags=Flag.DONATED), rows.parameter(flags=Flag.DONATED)
    rows.result(rows.op("fusion.optimizer", a, b, result_bytes=128))
    assert peak(rows) == 2


@pytest.mark.parametrize("peak_bytes", [100, 1000], ids=["laid out larger", "laid out smaller"])
def test_the_peak_of_a_compiled_program_is_the_compilers(peak_bytes: int) -> None:
    rows = Rows()
    a = rows.op("sort", rows.parameter())
    rows.result(rows.op("sort", a))
    memory = CompilerMemory(64, 64, 64, peak_bytes - 64, 0)
    use = memory_use(rows.build(), compiled=memory)
    assert use.peak_bytes == peak_bytes == sum(use.breakdown.values())
    assert use.breakdown["parameters"] == 64, "arguments keep their size"
    assert max(size for _, size in use.curve) == peak_bytes
    temporaries = use.breakdown["temporaries"] + use.breakdown["outputs"]
    assert temporaries == (36 if peak_bytes == 100 else 128)


def test_a_compiled_kernel_writes_its_results_over_donated_arguments_that_it_reads() -> None:
    rows = Rows()
    a, b = rows.parameter(flags=Flag.DONATED), rows.parameter(flags=Flag.DONATED)
    rows.result(rows.op("hlo.fusion", a, op=OpClass.COMPILED))
    rows.result(rows.op("hlo.fusion", a, b, op=OpClass.COMPILED, result_bytes=128))
    assert peak(rows) == 3, "one of the second kernel's results has no place"


def test_the_result_is_json() -> None:
    rows = Rows()
    rows.result(rows.op("sort", rows.parameter()))
    document = json.loads(json.dumps(dataclasses.asdict(used(rows))))
    assert document["peak_bytes"] == 128
    assert max(size for _, size in document["curve"]) == 128


def test_a_program_without_rows_needs_nothing() -> None:
    assert used(Rows()).peak_bytes == 0


def test_what_one_operator_changes_stays_as_long_as_its_result() -> None:
    rows = Rows()
    gradients = [rows.op("aten.mm", rows.parameter()) for _ in range(3)]
    clipped = rows.op(
        "aten._foreach_mul_",
        *gradients,
        result_bytes=3 * 64,
        alias=gradients[0],
        flags=Flag.IN_PLACE,
    )
    again = rows.op(
        "aten._foreach_mul_", clipped, result_bytes=3 * 64, alias=clipped, flags=Flag.IN_PLACE
    )
    made = rows.op("aten.sort", gradients[1])
    rows.op("aten.sort", again, made)
    assert peak(rows) == 3 + 3 + 2


def test_a_view_is_changed_in_place_whoever_reads_it_later() -> None:
    rows = Rows()
    bucket = rows.op("aten.mul", rows.parameter())
    summed = rows.op(
        "c10d.allreduce_",
        bucket,
        kind=Kind.COLLECTIVE,
        collective=Collective.ALL_REDUCE,
        alias=bucket,
        flags=Flag.IN_PLACE,
    )
    rows.op("aten.sort", bucket, summed)
    assert peak(rows) == 3  # argument, bucket, sorted


def test_statistics_that_change_beside_a_new_result_keep_their_size() -> None:
    rows = Rows()
    mean = rows.parameter(flags=Flag.DONATED, shape=(2,), result_bytes=8)
    image = rows.parameter()
    normal = rows.op("aten._native_batch_norm_legit", image, mean, alias=mean, flags=Flag.IN_PLACE)
    rows.op("aten.sort", normal)
    rows.op("aten.sort", mean)
    assert used(rows).peak_bytes == 8 + 64 + 2 * 64


def updated_parameter(gradient_of: int, first_in: Phase = Phase.UNKNOWN) -> int:
    """The peak of a step that reads its parameter twice before it updates it."""
    rows = Rows()
    weight = rows.parameter(flags=Flag.DONATED)
    first = rows.op("aten.mm", weight, rows.op("aten.rand"), phase=first_in)
    second = rows.op("aten.mm", weight, first)
    third = rows.op("aten.mm", second)
    gradient = (first, third, second)[gradient_of]
    rows.op(
        "aten.add_",
        *{weight: 0, first: 0, second: 0, gradient: 0},
        operand_bytes=128,
        alias=weight,
        flags=Flag.IN_PLACE,
    )
    return peak(rows)


def test_what_read_a_parameter_need_not_stay_until_it_is_updated() -> None:
    assert updated_parameter(1) == 3
    assert updated_parameter(0) == 4  # what is added may be any of what read it
    assert updated_parameter(2, first_in=Phase.FORWARD) == 3  # but not from the forward pass


def test_memory_that_is_written_anew_was_free_in_between() -> None:
    for operand_bytes, expected in ((64, 4), (128, 5)):  # an update reads what it changes
        rows = Rows()
        source = rows.parameter()
        gathered = rows.op("fsdp.split_with_sizes_copy", source)
        used = rows.op("aten.mm", gathered)
        wide = rows.op("aten.mm", used, result_bytes=128)
        narrow = rows.op("aten.mm", wide)
        rows.op(
            "fsdp.split_with_sizes_copy",
            *(source, gathered, used),
            operand_bytes=operand_bytes,
            alias=gathered,
            flags=Flag.IN_PLACE,
        )
        rows.op("aten.mm", narrow)
        assert peak(rows) == expected
