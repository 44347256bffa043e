"""Recorded inference: prefill and decode are told apart, and loops say what single passes say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from flint.backends.cost.estimate import estimate
from flint.errors import FlintError
from flint.frontends.torch_distributed import capture_script
from flint.frontends.torch_world.record import serving
from flint.frontends.torch_world.record.recording import Freed, Recording
from flint.ir.program import Phase
from flint.ir.workload import Workload
from flint.passes.work.totals import matmul_flops, total
from flint.requests.estimate import EstimateRequest
from tests.recordings import event, recording, tensor

#: Passes by (rows, length of the cache that they read): a product, attention by products, a cache that grows.
GENERATES = [(64, 0), (1, 64), (1, 65), (1, 66), (1, 67), (1, 68)]


def passes(
    sizes: list[tuple[int, int]], *, cached: bool = True, fed: bool = True
) -> tuple[Recording, list[tuple[int, int]]]:
    """A recording with one call of a module for each of `sizes`, and where the calls are."""
    events, calls, cache, token, weight = (
        [],
        [],
        tensor(10, 1, 8),
        tensor(11, 1, 8),
        tensor(1, 8, 8),
    )
    for number, (rows, length) in enumerate(sizes, start=1):
        calls.append((7, len(events)))
        x = tensor(token.storage if fed else 100 * number + 9, rows, 8)
        made = tensor(100 * number, rows, 8)
        events.append(event("aten.mm", [x, weight], [made]))
        grown = tensor(100 * number + 1, rows + length, 8)
        if cached:
            events.append(event("aten.cat", [cache, made] if length else [made, made], [grown]))
            cache = grown
        scores = tensor(100 * number + 2, rows, rows + length)
        events.append(event("aten.mm", [made, grown if cached else weight], [scores]))
        token = tensor(100 * number + 3, 1, 8)
        events.append(event("aten.argmax", [scores], [token]))
    found = [replace(e, phase=Phase.FORWARD) for e in events]
    return recording(*found), calls


def shown(sizes: list[tuple[int, int]], **options: bool) -> tuple[list[Phase], list[int]]:
    found = serving.condensed(*passes(sizes, **options))
    return [e.phase for e in found.events], [loop.trips for loop in found.loops]


@pytest.mark.parametrize(
    ("sizes", "options", "prefills", "trips"),
    [
        (GENERATES, {}, 1, [5]),
        (GENERATES[:2], {}, 1, [1]),
        ([(64, 0), (64, 64), *((1, 128 + n) for n in range(4))], {}, 2, [4]),  # a prompt in pieces
        ([*GENERATES, *GENERATES], {}, 1, [5]),  # the first warms up
        ([(8, 0), (9, 0), (10, 0)], {"cached": False}, 1, [2]),  # without a cache
        ([(8, 0)] * 4, {"cached": False}, 0, []),  # batches, or steps of diffusion
        (GENERATES, {"fed": False, "cached": False}, 0, []),  # nothing goes from one to the next
        ([(64, 0), (8, 64), (1, 72), (8, 73), (1, 81)], {}, 0, []),  # drafts that are verified
    ],
)
def test_a_prefill_and_passes_that_grow_are_a_generation(
    sizes: list[tuple[int, int]], options: dict[str, bool], prefills: int, trips: list[int]
) -> None:
    phases, loops = shown(sizes, **options)
    a_pass = 3 + options.get("cached", True)
    assert (phases.count(Phase.PREFILL), loops) == (prefills * a_pass, trips)
    assert phases.count(Phase.DECODE) == (a_pass if trips else 0)


def test_the_body_of_a_loop_reads_what_the_pass_before_made() -> None:
    recorded, calls = passes(GENERATES)
    found = serving.condensed(recorded, calls)
    (loop,) = found.loops
    body = found.events[loop.start : loop.stop]
    assert body[1].inputs[0].storage == 101  # the cache of the prefill
    assert body[1].outputs[0].shape == (67, 8)  # 65 to 69 places
    assert dict(loop.carries) == {103: body[3].outputs[0], 101: body[1].outputs[0]}
    assert serving.condensed(recorded, calls, "decode").events == tuple(
        replace(e, phase=Phase.DECODE) for e in recorded.events[12:16]
    )
    with pytest.raises(FlintError) as error:
        serving.condensed(*passes([(8, 0)] * 3, cached=False), "decode")
    assert error.value.code == "FL729"


def test_what_a_pass_makes_is_there_until_it_lets_go_of_it() -> None:
    """Scores of a prefill, and of the pass that stands for all that decode, which are kept at 4 to 8."""
    recorded, calls = passes(GENERATES)
    goes = [(102, 4), (100, 6), (302, 12), (400, 15), (402, 16)]
    found = serving.condensed(replace(recorded, freed=tuple(Freed(*f) for f in goes)), calls)
    assert found.freed == (Freed(102, 4), Freed(400, 7), Freed(402, 8))


SCRIPT = """
import sys
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(512, 64), nn.Linear(64, 512)
        self.layers = nn.ModuleList(nn.Linear(64, 192) for _ in range(3))

    def forward(self, tokens, caches):
        x, grown = self.embed(tokens), []
        for layer, cache in zip(self.layers, caches or [None] * 3):
            q, k, v = layer(x).chunk(3, -1)
            if cache is not None:
                k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
            grown.append((k, v))
        return self.head(x[:, -1:]), grown

model = Model().cuda()
tokens, caches = torch.zeros(4, 128, dtype=torch.long).cuda(), None
with torch.no_grad():
    for _ in range(6):
        logits, caches = model(tokens, caches)
        tokens = logits.argmax(-1)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serving") / "generate.py"
    path.write_text(SCRIPT)
    return path


def _estimated(workload: Workload):
    return estimate(workload, EstimateRequest("h100-dgx"))


def test_a_loop_says_what_its_passes_say(script: Path) -> None:
    whole, prefill, decode = (
        capture_script(script, (), "1", steps=0, part=part) for part in ("", "prefill", "decode")
    )
    for workload in (whole, prefill, decode):
        workload.verify()
    flops = [total(w.programs[0], matmul_flops(w.programs[0])) for w in (whole, prefill, decode)]
    assert flops[0] == flops[1] + 5 * flops[2]
    found, first, each = map(_estimated, (whole, prefill, decode))
    assert first.serving is None and each.serving is None
    assert found.serving is not None
    assert found.serving["decode_passes"] == 5
    assert found.serving["ttft_ns"] == pytest.approx(first.step_time_ns, rel=0.01)
    assert found.serving["tpot_ns"] == pytest.approx(each.step_time_ns, rel=0.02)
    assert found.step_time_ns == pytest.approx(
        found.serving["ttft_ns"] + 5 * found.serving["tpot_ns"], abs=1
    )
    assert "each of 5 more" in found.to_text()
