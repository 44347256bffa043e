"""Gathering ahead holds the layer that runs and the next one, whatever loops are around them."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flint.backends.cost.memory.memory import memory_use
from flint.ir.program import Collective, Kind, RegionKind
from tests.program_text import Rows, group

#: Bytes of each weight of a layer, gathered.
weights = st.lists(st.sampled_from([256, 512, 4096]), min_size=1, max_size=4)


class Model(Rows):
    """Layers that gather their weights and multiply, in loops or one by one."""

    def __init__(self, sizes: list[int], *, scopes: bool) -> None:
        super().__init__()
        self.sizes, self.scopes = sizes, scopes
        self.stacks = [self.parameter() for _ in sizes]
        self.single = [[self.parameter() for _ in sizes] for _ in range(5)]

    def layer(self, x: int, parts: list[int], scope: str = "") -> int:
        for size, part in zip(self.sizes, parts, strict=True):
            columns: dict[str, Any] = {"comm_bytes": 64, "result_bytes": size, "shape": (size,)}
            gathered = self.op(
                "sdy.all_gather", part, kind=Kind.COLLECTIVE, collective=Collective.ALL_GATHER,
                group=group("x"), scope=scope, **columns,
            )  # fmt: skip
            x = self.op("sort", x, gathered, scope=scope)
        return x

    def written_out(self, x: int, layers: int) -> int:
        for number in range(layers):
            scope = f"layer{number}" if self.scopes else "layers"
            x = self.layer(x, self.single[number], scope)
        return x

    def scanned(self, x: int, layers: int) -> int:
        turn, row = self.begin(x, layers)
        parts = [self.op("dynamic_slice", stack, turn) for stack in self.stacks]
        return self.end(turn, row, self.layer(row, parts))

    def begin(self, x: int, trips: int) -> tuple[int, int]:
        """A loop with a counter that carries x."""
        zero = self.op("constant", kind=Kind.VALUE, result_bytes=4, operand_bytes=0)
        self.begin_region(RegionKind.LOOP, trips)
        turn = self.op("while.carry", zero, kind=Kind.VALUE, alias=zero, result_bytes=4)
        return turn, self.op("while.carry", x, kind=Kind.VALUE, alias=x)

    def end(self, turn: int, row: int, made: int) -> int:
        following = self.op("add", turn, result_bytes=4, operand_bytes=8)
        self.end_region(carries=((turn, following), (row, made)))
        return made


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=weights,
    layers=st.integers(1, 5),
    microbatches=st.integers(0, 4),
    scan=st.booleans(),
    scopes=st.booleans(),
    root=st.booleans(),
    again=st.booleans(),
)
def test_at_most_the_weights_of_two_layers_are_added(
    sizes: list[int], layers: int, microbatches: int, scan: bool, scopes: bool, root: bool,
    again: bool,
) -> None:  # fmt: skip
    """`microbatches` 0 is no loop around; `again` runs the layers twice, as recomputation does;
    `root` gathers more weights around them."""
    model = Model(sizes, scopes=scopes)
    x = model.parameter()
    turn = row = -1
    if microbatches:
        turn, row = model.begin(x, microbatches)
        x = row
    for _ in range(1 + again):
        if root:
            x = model.layer(x, model.stacks, "root")
        x = model.scanned(x, layers) if scan else model.written_out(x, layers)
    if microbatches:
        x = model.end(turn, row, x)
    model.result(x)
    program = model.build()
    plain, ahead = (memory_use(program, ahead=ahead).peak_bytes for ahead in (False, True))
    slices = 64 * len(sizes)  # what a loop cuts off its stacks for the next turn
    assert plain <= ahead <= plain + 2 * (1 + root) * (sum(sizes) + slices)
