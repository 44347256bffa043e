"""Inference: what is said of pools and of a decode step is what their own estimates say."""

from pathlib import Path

import pytest

from flint.errors import FlintError
from flint.tools.explore.answers.objectives import cache_bytes, period_ns, tpot_ns, ttft_ns
from flint.tools.explore.evaluation.evaluate import Evaluator
from flint.tools.explore.point import Point
from flint.tools.explore.result import PoolRole, Result, Status
from flint.tools.explore.space.space import space_of
from flint.tools.explore.subject import Subject

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = (("num_layers", "2"),)


def _result(model, mesh, *settings, tokens=""):
    evaluator = Evaluator(Subject(str(EXAMPLES / model), settings=SMALL, tokens=tokens))
    try:
        (found,) = evaluator.evaluate([Point(mesh, "h100-dgx", settings=settings)])
    finally:
        evaluator.close()
    assert found.status is Status.FITS, found.reason
    return found


@pytest.fixture(scope="module")
def pools():
    return _result("disaggregated_jax.py", "pool=4,data=1,model=8")


def test_pools_say_when_the_first_token_and_the_next_ones_come(pools):
    prefill, decode = pools.classes
    assert (prefill.role, decode.role) == (PoolRole.PREFILL, PoolRole.DECODE)
    assert ttft_ns(pools) == prefill.end_ns < pools.step_time_ns
    assert decode.waiting_ns > 0.8 * prefill.end_ns  # its first step waits for the caches
    assert tpot_ns(pools) == decode.end_ns - decode.waiting_ns == period_ns(pools)
    assert Result.from_json(pools.to_json()) == pools


def test_a_decode_step_of_pools_takes_what_it_takes_alone(pools):
    alone = _result("decode_jax.py", "data=1,model=8", ("batch", "16"), ("model", "8b"))
    assert ttft_ns(alone) == tpot_ns(alone) == alone.step_time_ns
    assert tpot_ns(pools) == pytest.approx(alone.step_time_ns, rel=0.1)


def test_caches_are_what_the_dimensions_say(pools):
    layers, requests, places, heads, head_dim = 2, 16, 8192, 8, 128
    expected = 2 * layers * requests * places * heads * head_dim * 2 // 8  # k and v in bf16, TP 8
    assert cache_bytes(pools) == expected
    longer = _result(
        "decode_jax.py", "data=1,model=8", ("batch", "16"), ("length", "16384"), ("model", "8b")
    )
    assert cache_bytes(longer) == 2 * expected


def test_tokens_are_said_over_options_and_axes():
    settings = (("batch", "16"), ("prefill_pool", "3"))
    model, mesh = "disaggregated_jax.py", "pool=4,data=1,model=8"
    found = _result(model, mesh, *settings, tokens="batch * tokens * (pool - prefill_pool)")
    assert found.tokens == 16
    assert _result(model, mesh, *settings).tokens == 0  # prompts are no tokens that come out
    subject = Subject(str(EXAMPLES / model), tokens="batch * seq")
    with pytest.raises(FlintError, match="unknown name 'seq'"):
        space_of(subject, clusters=["h100-dgx"], mesh=mesh)
    none = Subject(str(EXAMPLES / model), settings=SMALL, tokens="batch - 16")
    evaluator = Evaluator(none)
    (wrong,) = evaluator.evaluate([Point(mesh, "h100-dgx", settings=settings)])
    evaluator.close()
    assert (wrong.status, wrong.code) == (Status.REFUSED, "FL861")
    assert "gives 0, not a number of tokens" in wrong.reason
