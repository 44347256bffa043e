"""The replay: held against a plain scheduler, and properties that every replay has."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.tools.report.perfetto import EventType, messages
from flint.tools.serve.engine.cache import PagedCache
from flint.tools.serve.engine.engines import ENGINES, rules_of
from flint.tools.serve.engine.speculative import speculating
from flint.tools.serve.replay import Pool, Replay, Router, Unserved, replay
from flint.tools.serve.requests.generated import requests_of
from flint.tools.serve.requests.table import Prefixes, Requests
from flint.tools.serve.result import limits_of, request_times, summarize, unsteady
from flint.tools.serve.step_times import PromptChunk
from flint.tools.serve.timeline import timeline_of
from tests.tools.serve.plain import Plain
from tests.tools.serve.roofline import Roofline

OPTIONS = {
    "vllm": "max_num_seqs={seqs},max_num_batched_tokens={tokens},block_size={block}",
    "sglang": "max_running_requests={seqs},chunked_prefill_size={tokens},page_size={block}",
    "trtllm": "max_batch_size={seqs},max_num_tokens={tokens},tokens_per_block={block},"
    "enable_chunked_prefill=on",
}
VARIANTS = {
    "vllm": ["", "scheduler_reserve_full_isl=off", "scheduling_policy=priority", "watermark=0.1"],
    "sglang": ["", "enable_mixed_chunk=on", "schedule_conservativeness=0.1"],
    "trtllm": ["", "capacity_scheduler_policy=MAX_UTILIZATION"],
}


@st.composite
def some_requests(draw: st.DrawFn, most: int = 30) -> Requests:
    n = draw(st.one_of(st.integers(1, most), st.just(most)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    span = draw(st.sampled_from([0.0, 0.1, 3.0, 60.0]))
    inputs = random.integers(1, draw(st.sampled_from([5, 60, 300])), n, endpoint=True)
    outputs = random.integers(1, draw(st.sampled_from([2, 40, 200, 200])), n, endpoint=True)
    shared = np.repeat(random.integers(0, 2, n), 3) * 10 + np.tile(np.arange(3), n)
    lengths = np.minimum(inputs // 16, 3)
    kept = (np.arange(3) < lengths[:, None]).ravel()
    prefixes = Prefixes(np.cumsum([0, *lengths]), shared[kept], 16)
    return Requests(
        "drawn", np.sort(random.random(n) * span), inputs, outputs, random.integers(0, 3, n),
        prefixes if draw(st.booleans()) else None,
        draw(st.sampled_from([None, None, 3])),
    )  # fmt: skip


@st.composite
def some_engines(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from([*ENGINES]))
    seqs = draw(st.sampled_from([1, 4, 16, 16]))
    text = OPTIONS[name].format(
        seqs=seqs,
        tokens=draw(st.sampled_from([16, 33, 512, 512])),
        block=draw(st.sampled_from([1, 7, 16])),
    )
    host = draw(st.sampled_from([0, 300]))
    return f"{name}:{text},host_us={host}," + draw(st.sampled_from(VARIANTS[name]))


def _columns(found: Replay) -> bytes:
    t = found.times
    columns = (t.queued, t.scheduled, t.first, t.last, t.preemptions, t.cached, t.replica)
    return b"".join(c.tobytes() for c in columns)


@given(some_requests(), some_engines(), st.sampled_from([520, 520, 700, 3000]))
@settings(max_examples=120, deadline=None)
def test_the_engine_schedules_as_a_plain_scheduler(
    requests: Requests, engine: str, cache: int
) -> None:
    requests = replace(requests, prefixes=None, concurrency=None)
    chip, rules = Roofline(cache_tokens=cache), rules_of(engine)
    found, plain = replay(requests, Pool(chip, rules)), Plain(requests, chip, rules).every
    times = found.times
    assert times.preemptions.tolist() == [s.preemptions for s in plain]
    passes = found.passes[0][0]
    gaps = np.repeat(np.array(passes.gaps_ns), np.array(passes.gaps, np.int64))
    for mine, theirs in (  # but for the last bit: sums in another order
        (times.scheduled, [s.scheduled for s in plain]),
        (times.first, [s.tokens_ns[0] for s in plain]),
        (times.last, [s.tokens_ns[-1] for s in plain]),
        (np.sort(gaps), np.sort(np.concatenate([np.diff(s.tokens_ns) for s in plain]))),
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-3)


@given(
    some_requests(), some_engines(), st.integers(1, 3), st.sampled_from([*Router]), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_what_every_replay_keeps(
    requests: Requests, engine: str, engines: int, router: Router, pools: bool
) -> None:
    chip = Roofline(cache_tokens=560, longest=450)
    pool = Pool(chip, rules_of(engine), engines)
    decode = Pool(chip, rules_of(engine), 2) if pools else None
    try:
        found = replay(requests, pool, decode, router=router)
    except FlintError as error:
        assert error.code == "FL888"
        return
    times = found.times
    ended = ~np.isnan(times.last)
    assert sorted(found.unserved) == np.flatnonzero(~ended).tolist()
    inputs, outputs = requests.input_tokens, requests.output_tokens
    assert all(pool.refuses(inputs[i], inputs[i] + outputs[i]) for i in found.unserved)
    assert (times.queued[ended] <= times.scheduled[ended]).all()
    assert (times.scheduled[ended] < times.first[ended]).all()
    assert (times.first[ended] <= times.last[ended]).all()
    every = [p for ps in found.passes for p in ps]
    computed, gaps = sum(p.columns.new.sum() for p in every), sum(sum(p.gaps) for p in every)
    again = computed + times.cached.sum() - inputs[ended].sum()
    assert gaps + ended.sum() == outputs[ended].sum()
    assert again > 0 if times.preemptions.any() else again == 0
    most = chip.cache_tokens // pool.rules.block_tokens
    assert all(p.columns.used.max(initial=0) <= most for p in every)
    shares = [sum(use.time.values()) for use in summarize(found).pools]
    assert shares == pytest.approx([1] * len(shares), abs=1e-4)


def served(load: str, engine: str = "vllm", engines: int = 1, cache: int = 400_000) -> Replay:
    return replay(requests_of(load), Pool(Roofline(cache), rules_of(engine), engines))


@pytest.mark.parametrize("engine", ENGINES)
def test_first_come_first_served_and_none_starves(engine: str) -> None:
    found = served("poisson:200/s,lengths=sharegpt,n=400,seed=3", engine, cache=6000)
    assert not np.isnan(found.times.last).any()
    assert (np.diff(found.times.scheduled) >= 0).all()


@given(st.sampled_from([*ENGINES]), st.integers(1, 8000), st.integers(1, 30), st.integers(0, 500))
@settings(max_examples=20, deadline=None)
def test_at_a_low_rate_the_first_token_takes_one_prefill(
    engine: str, tokens: int, output: int, host: int
) -> None:
    found = served(f"constant:0.1/s,input={tokens},output={output},n=4", f"{engine}:host_us={host}")
    alone = Roofline().step_ns(0, 0, (PromptChunk(tokens, 0),)) + host * 1e3
    assert request_times(found)["ttft"] == pytest.approx(alone)


@given(st.sampled_from([8, 64, 200]), st.integers(1, 400), st.integers(600, 1200))
@settings(max_examples=8, deadline=None)
def test_all_at_once_the_throughput_is_that_of_full_passes(
    sequences: int, tokens: int, output: int
) -> None:
    load = f"poisson:inf/s,input={tokens},output={output},n={10 * sequences}"
    found = summarize(served(load, f"vllm:max_num_seqs={sequences},host_us=0", cache=4_000_000))
    decode = output * Roofline().step_ns(sequences, sequences * (tokens + output // 2))
    prompts = Roofline().step_ns(0, 0, [PromptChunk(tokens, 0)] * sequences)
    fullest = sequences * output / (decode + prompts) * 1e9
    assert 0.9 * fullest < found.output_tokens_per_s < 1.02 * fullest
    assert found.pools[0].mean_batch == pytest.approx(sequences, rel=0.1)


@given(st.sampled_from([*ENGINES]), st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_waits_do_not_fall_when_the_rate_rises(engine: str, seed: int, engines: int) -> None:
    loads = [f"poisson:{rate}/s,lengths=sharegpt,n=200,seed={seed}" for rate in (2, 8, 32, 128)]
    ttft = [summarize(served(load, engine, engines)).ttft_ns.p99 for load in loads]
    assert all(a <= b * 1.15 for a, b in itertools.pairwise(ttft[1:]))
    assert ttft[0] <= ttft[-1]


@given(st.sampled_from([*ENGINES]), st.integers(1, 8), st.floats(0, 1), st.floats(0, 0.5))
@settings(max_examples=15, deadline=None)
def test_drafts_give_the_tokens_of_their_passes(
    engine: str, drafted: int, accepted: float, share: float
) -> None:
    """A lone sequence: passes that check, and drafts, over the tokens that they give on average."""
    chip, text = (
        Roofline(),
        f"draft_tokens={drafted},acceptance_rate={accepted},draft_share={share}",
    )
    rules = rules_of(f"{engine}:host_us=100,{text}")
    load = requests_of("constant:0.1/s,input=1000,output=20,n=3")
    found = replay(load, Pool(*speculating(chip, rules)))
    check = chip.step_ns(0, 0, (PromptChunk(1 + drafted, 1010),))
    whole = check + drafted * share * chip.step_ns(1, 1010) + 1e5
    tokens = np.polyval([1.0] * (drafted + 1), accepted)
    assert request_times(found)["tpot"] == pytest.approx(whole / tokens, rel=1e-3)
    alone = chip.step_ns(0, 0, (PromptChunk(1000, 0),)) + 1e5
    assert request_times(found)["ttft"] == pytest.approx(alone)


def test_shared_prefixes_are_computed_once() -> None:
    load = "constant:2/s,input=1000,output=4,n=20,prefix=800"
    for engine in ENGINES:
        assert served(load, engine).times.cached.tolist() == [0, *[800] * 19], engine
    assert not served(load, "vllm:enable_prefix_caching=off").times.cached.any()
    pool = Pool(Roofline(), rules_of("vllm"), 4)
    routed = [replay(requests_of(load), pool, router=r) for r in Router]
    assert [int((r.times.cached == 0).sum()) for r in routed] == [4, 1, 1]


def test_the_least_used_block_of_prompts_gives_way_first() -> None:
    cache = PagedCache(tokens=64, block_tokens=16, unit_tokens=16)
    for prompt in ([1, 2], [3]):
        cache.take(len(prompt))
        assert all(map(cache.publish, prompt)) and not cache.publish(prompt[0])
        cache.release(prompt)
    assert cache.available == 4 and cache.idle_blocks([1, 2, 3]) == 3
    cache.take(2)
    assert [cache.hits(p) for p in ([1, 2], [2], [3])] == [1, 0, 1]
    cache.hold([1])
    cache.take(1)
    assert [cache.hits([1]), cache.hits([3]), cache.available] == [1, 0, 0]


def test_a_prefix_that_nobody_holds_takes_its_place_again() -> None:
    requests = Requests(
        "drawn", np.array([0, 0.1, 0.11]), np.array([40, 20, 40]), np.array([1, 12, 1]),
        np.zeros(3, np.int64), Prefixes(np.array([0, 2, 2, 4]), np.array([1, 2, 1, 2]), 16),
    )  # fmt: skip
    times = replay(requests, Pool(Roofline(64), rules_of("vllm"))).times
    assert times.cached.tolist() == [0, 0, 32]
    assert times.scheduled[2] == times.last[1]  # three blocks of four, beside two


def test_what_is_preempted_ends_although_it_is_longer_than_a_pass() -> None:
    engine = "trtllm:capacity_scheduler_policy=MAX_UTILIZATION,max_num_tokens=64"
    times = served("poisson:inf/s,input=60,output=60,n=4", engine, cache=256).times
    assert times.preemptions.any() and not np.isnan(times.last).any()


def test_a_request_goes_to_the_engine_with_the_fewest() -> None:
    requests = replace(
        requests_of("constant:1/s,input=20,output=1,n=3"), arrival_s=np.array([0, 0.001, 5])
    )
    found = replay(requests, Pool(Roofline(), rules_of("vllm"), 2))
    assert found.times.replica.tolist() == [0, 1, 0]  # the second comes in the pass of the first


def test_pools_add_the_transfer_and_keep_prompts_from_decodes() -> None:
    requests, chip = requests_of("constant:1/s,input=2000,output=50,n=8"), Roofline(2100)
    rules = rules_of("vllm:host_us=0")
    apart = replay(requests, Pool(chip, rules), Pool(chip, rules, 2))
    waited = (
        request_times(apart)["ttft"] - request_times(replay(requests, Pool(chip, rules)))["ttft"]
    )
    assert waited == pytest.approx(chip.transfer_ns(2000))
    assert summarize(apart).pools[1].time["prefill"] == 0
    small = replay(requests, Pool(Roofline(2016), rules), Pool(chip, rules, 2))
    assert _columns(small) == _columns(apart)  # an engine that prefills needs no room for answers
    one = requests_of("constant:1/s,input=20,output=1,n=2")
    times = replay(one, Pool(chip, rules), Pool(chip, rules)).times
    assert (times.first == times.last).all()


def test_what_cannot_be_served_is_said() -> None:
    rules, chip = rules_of("trtllm:max_num_tokens=512"), Roofline(3200, longest=4000)
    requests = requests_of("constant:1/s,input=100,output=20,n=5")
    requests = replace(requests, input_tokens=np.array([100, 600, 3300, 9000, 510]))
    found = replay(requests, Pool(chip, rules))
    assert found.unserved == {1: Unserved.PASS, 2: Unserved.CACHE, 3: Unserved.MODEL}
    assert [n.requests for n in summarize(found).not_ended] == [1, 1, 1]
    with pytest.raises(FlintError, match="FL888"):
        replay(replace(requests, input_tokens=np.full(5, 9000)), Pool(chip, rules))
    with pytest.raises(FlintError, match="FL892"):
        replay(requests, Pool(chip, rules, 0))


@pytest.mark.parametrize(
    ("engine", "cache", "lengths", "resource"),
    [
        ("vllm:max_num_batched_tokens=64", 400_000, "input=2000,output=2", "time"),
        ("vllm:max_num_seqs=4", 400_000, "input=200,output=200", "sequences"),
        ("trtllm", 4_000, "input=200,output=200", "cache"),
    ],
)
def test_a_rate_that_is_too_high_names_what_ends_it(
    engine: str, cache: int, lengths: str, resource: str
) -> None:
    high = summarize(served(f"poisson:50/s,{lengths},n=400", engine, cache=cache)).overload
    assert high and high.resource == resource
    assert high.asked_tokens_per_s > high.served_tokens_per_s
    low = summarize(served(f"poisson:0.2/s,{lengths},n=100", engine, cache=cache))
    assert low.overload is None and low.ended == 100


@pytest.mark.parametrize(
    ("engine", "cache", "resource"),
    [("vllm:max_num_seqs=300", 400_000, "sequences"), ("vllm", 40_000, "cache")],
)
def test_a_rate_is_too_high_however_few_requests_show_it(
    engine: str, cache: int, resource: str
) -> None:
    """None of them ever waits: they are fewer than the engine has places for."""
    lengths = "input=16,output=300"
    for n in (90, 40):
        few = summarize(served(f"poisson:100/s,{lengths},n={n}", engine, cache=cache))
        assert few.queue_ns.p99 < 1e8
        assert few.overload and few.overload.resource == resource
    slow = served(f"poisson:5/s,{lengths},n=40", engine, cache=cache)
    assert "n=" in unsteady(slow, summarize(slow))[0]
    long = served(f"poisson:5/s,{lengths},n=100", engine, cache=cache)
    assert not summarize(long).overload and not unsteady(long, summarize(long))


def test_a_pool_that_decodes_too_slowly_is_overloaded() -> None:
    requests, chip = requests_of("poisson:20/s,input=512,output=256,n=150"), Roofline(400_000)
    prefill, few = Pool(chip, rules_of("vllm")), rules_of("vllm:max_num_seqs=8")
    slow = summarize(replay(requests, prefill, Pool(chip, few)))
    assert slow.overload and slow.overload.resource == "sequences"
    assert slow.queue_ns.p99 > 1e9
    assert summarize(replay(requests, prefill, Pool(chip, few, 60))).overload is None


def test_a_closed_loop_keeps_its_number_of_requests() -> None:
    times = served("concurrency:8,input=50,output=30,n=64", engines=2).times
    starts, ends = np.sort(times.queued), np.sort(times.last)
    assert (starts[8:] == ends[:-8]).all() and (starts[:8] == 0).all()
    load = requests_of("concurrency:4,input=50,output=uniform(2,60),n=64")
    uneven = replay(load, Pool(Roofline(), rules_of("vllm"), 2), router=Router.ROUND_ROBIN)
    waits = request_times(uneven)["queue"]  # there is room: nobody waits for more than one pass
    assert waits.max() <= max(max(p.gaps_ns) for p in uneven.passes[0])


def test_goodput_and_percentiles_are_of_the_requests() -> None:
    found = served("poisson:20/s,lengths=sharegpt,n=300")
    times = request_times(found)
    summary = summarize(found, limits_of("ttft<=60ms, tpot<=13ms"))
    meets = (times["ttft"] <= 60e6) & ~(times["tpot"] > 13e6)
    good, gaps = summary.goodput, summary.itl_ns
    assert good and good.limits_ns == {"ttft": 60e6, "tpot": 13e6}
    assert 0 < good.share < 1 and good.share == pytest.approx(meets.mean())
    passes = found.passes[0][0]
    every = np.repeat(np.array(passes.gaps_ns), np.array(passes.gaps, np.int64))
    assert gaps and gaps.mean == pytest.approx(every.mean())
    middle = np.percentile(every, (50, 90, 99), method="inverted_cdf").tolist()
    assert [gaps.p50, gaps.p90, gaps.p99] == middle


@pytest.mark.parametrize(
    "text",
    ["ttft<=2", "ttft<=0s", "ttft<=1s,ttft<=2s", "tptt<=1s", "a>=1s", "latency<=1s,ttft<=2s", ""],
)
def test_limits_that_cannot_be_read_or_met(text: str) -> None:
    with pytest.raises(FlintError, match="FL891"):
        limits_of(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vlm", "did you mean 'vllm'"),
        ("vllm:max_num_seq=3", "did you mean 'max_num_seqs'"),
        ("vllm:max_num_seqs=0", "greater than or equal to 1"),
        ("vllm:watermark=1", "less than 1"),
        ("vllm:max_num_seqs=128,max_num_batched_tokens=64", "less than max_num_seqs=128"),
        ("trtllm:capacity_scheduler_policy=STATIC_BATCH", "MAX_UTILIZATION"),
        ("sglang:page_size", "not written key=value"),
        ("sglang:page_size=1,page_size=2", "stands twice"),
    ],
)
def test_options_that_an_engine_does_not_take(text: str, said: str) -> None:
    with pytest.raises(FlintError, match="FL890") as caught:
        rules_of(text)
    assert said in str(caught.value)


def test_times_over_time_are_of_all_requests_where_they_arrive() -> None:
    found = served("poisson:100/s,input=300,output=40,n=400,seed=2", cache=9000)
    spans, ttft = summarize(found).over_time, request_times(found)["ttft"]
    assert sum(s.requests for s in spans) == 400 and len(spans) == 20
    for s in (spans[0], spans[7]):
        at = found.times.queued / 1e9
        mine = ttft[(at >= s.start_s) & (at < s.end_s)]
        assert (len(mine), float(np.percentile(mine, 99))) == (s.requests, s.ttft_ns.p99)
    (alone,) = summarize(served("constant:inf,input=9,output=1,n=90")).over_time
    assert (alone.requests, alone.tpot_ns) == (90, None)


@pytest.mark.parametrize("pools", [1, 2])
def test_a_trace_has_every_pass_and_every_request_in_its_own_time(pools: int) -> None:
    chip, requests = (
        Roofline(cache_tokens=3000),
        requests_of("poisson:90/s,input=200,output=30,n=60"),
    )
    more = Pool(chip, rules_of("vllm"), 2) if pools > 1 else None
    found = replay(requests, Pool(chip, rules_of("vllm"), 2), more)
    trace = messages().Trace.FromString(timeline_of(found))
    names = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet}
    open_slices: dict[int, list[str]] = {}
    ended: list[str] = []
    for packet in sorted(trace.packet, key=lambda p: p.timestamp):
        event = packet.track_event
        stack = open_slices.setdefault(event.track_uuid, [])
        if event.type == EventType.SLICE_BEGIN:
            stack.append(event.name)
        elif event.type == EventType.SLICE_END:
            ended.append(stack.pop())
    assert not any(open_slices.values())
    passes = sum(len(p.columns.kind) for pool in found.passes for p in pool)
    kinds = Counter(name.split()[0] for name in ended)
    assert kinds["request"] == 60 and {"wait", "prefill", "decode"} < {*kinds}
    inside = kinds["prefill"] + kinds["decode"] + kinds["mixed"]
    assert inside == passes + 120  # each request has a prefill and a decode
    counters = [p.track_event for p in trace.packet if p.track_event.type == EventType.COUNTER]
    held = [e.counter_value for e in counters if names[e.track_uuid].name == "tokens in the cache"]
    assert 0 < max(held) <= 3000 and held[-1] == 0
