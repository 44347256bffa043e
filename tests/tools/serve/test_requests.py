"""Logs of requests and generators: each format is read, what is wrong has a code and a place."""

import json
from pathlib import Path

import numpy as np
import pytest

from flint.errors import FlintError
from flint.tools.serve.requests.generated import requests_of
from flint.tools.serve.requests.table import Requests

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)
MOONCAKE = {"timestamp": 2000, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}
PLAIN = '{"input_tokens": 1, "output_tokens": 2}\n'
TALK = [{"from": "human", "value": "x" * 401}, {"from": "gpt", "value": "y" * 40}]


@pytest.mark.parametrize(
    ("text", "arrivals", "inputs", "outputs", "note"),
    [
        (
            AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:45.1805900,396,109\n",
            [0, 1.5], [396, 374], [109, 44], "sorted by arrival: 1 rows stood before an earlier one",
        ),
        (AZURE + "2024-05-10 00:00:00.5+00:00,1452,3\n2024-05-10 00:00:02.5+00:00,9,1\n",
         [0, 2], [1452, 9], [3, 1], None),
        (BURST + "5,1,2,ChatGPT,472,18,490,API log\n45,2,2,GPT-4,108,0,108,API log\n",
         [0], [472], [18], "left out: 1 request without output tokens"),
        (json.dumps(MOONCAKE) + "\n" + json.dumps({**MOONCAKE, "timestamp": 3500}),
         [0, 1.5], [1100, 1100], [5, 5], None),
        (json.dumps([{"conversations": TALK}, {"conversations": TALK[:1]}], indent=1),
         [0], [101], [10], "left out: 1 request with fewer than two turns"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,20\n", [0], [10], [20], None),
        (PLAIN + PLAIN.replace("}", ', "priority": 3}'), [0, 0], [1, 1], [2, 2], None),
        ('{"prompt_tokens": 3, "completion_tokens": 4}', [0], [3], [4],
         "the file says no times of arrival: all requests arrive at once"),
        ("input_tokens,output_tokens,timestamp\n1,1,20240101\n1,1,20240131\n",
         [0, 30], [1, 1], [1, 1], None),
        ("\ufeffInput_Tokens,output_tokens,queued_ms,priority\n7,8.0,1500,1\n7,9,2500,0\n",
         [0, 1], [7, 7], [8, 9], None),
    ],
)  # fmt: skip
def test_a_log_is_read(
    tmp_path: Path,
    text: str,
    arrivals: list[float],
    inputs: list[int],
    outputs: list[int],
    note: str | None,
) -> None:
    (tmp_path / "log").write_text(text)
    found = requests_of(str(tmp_path / "log"))
    assert found.arrival_s.tolist() == pytest.approx(arrivals)
    assert (found.input_tokens.tolist(), found.output_tokens.tolist()) == (inputs, outputs)
    assert note is None or note in found.notes


def test_full_blocks_of_mooncake_have_hashes(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(json.dumps(MOONCAKE))
    prefixes = requests_of(str(tmp_path / "log")).prefixes
    assert prefixes is not None and prefixes.of(0) == [7, 8] and prefixes.block_tokens == 512


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("a,b\n1,2\n", "FL884", "a, b"),
        ("", "FL884", "empty"),
        ("input_tokens,output_tokens\n1,2\n1,x\n", "FL886", "log:3"),
        ("input_tokens,output_tokens\n1,2\n1\n", "FL886", "log:3"),
        ("input_tokens,output_tokens\n1,-2\n", "FL886", "output_tokens is -2"),
        ("input_tokens,output_tokens\n1,nan\n", "FL886", "not a number"),
        ('{"input_tokens": 1, "output_tokens": 2}\n{"input_tokens":', "FL886", "log:2"),
        ('[{"conversations": [{}, {}]}]', "FL886", "neither tokens nor a value"),
        ('[{"conversations": []}', "FL886", "does not end"),
        (PLAIN + PLAIN.replace("}", ', "arrival_s": 3}'), "FL886", "log:2"),
        ('{"a":' + "[" * 200_000, "FL886", "nested too deeply"),
        ("input_tokens,output_tokens,priority\n1,2,1e300\n", "FL886", "priority is 1e+300"),
        ('{"input_tokens": 1, "output_tokens": 2, "hash_ids": "a"}', "FL886", "hash_ids"),
        ('{"input_tokens": 1, "output_tokens": true}', "FL886", "not a number"),
        ("input_tokens,output_tokens\n0,2\n", "FL887", "without input tokens"),
        ("input_tokens,output_tokens,input_tokens\n1,2,9\n", "FL886", "two columns"),
        ("input_tokens,output_tokens,timestamp\n1,2,1700000000123\n", "FL886", "arrival_ms"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, text: str, code: str, said: str
) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(FlintError, match=code) as caught:
        requests_of(str(tmp_path / "log"))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("poisson:10", "how long requests are"),
        ("poisson:x/s,lengths=sharegpt", "a rate such as 10/s"),
        ("poisson:10/s,lengths=sharegpt,sed=3", "did you mean 'seed'"),
        ("constant:5/s,input=0,output=4", "lognormal(mean,sigma)"),
        ("constant:5/s,input=uniform(4,1),output=4", "uniform(64,256)"),
        ("constant:5/s,input=uniform(4,9,-5),output=4", "uniform(64,256)"),
        ("constant:5/s,input=uniform(4.5,9.5),output=4", "uniform(64,256)"),
        ("constant:5/s,input=4,output=lognormal(161,1.2,1e12)", "lognormal(mean,sigma)"),
        ("poisson:5/s,input=4,output=4,burstiness=2", "no option 'burstiness'"),
        ("concurrency:0,input=4,output=4", "greater than or equal to 1"),
        ("trace:", "nothing behind"),
    ],
)
def test_generators_say_what_they_cannot_read(text: str, said: str) -> None:
    with pytest.raises(FlintError, match="FL889") as caught:
        requests_of(text)
    assert said in str(caught.value)


def _bytes(found: Requests) -> bytes:
    return b"".join(c.tobytes() for c in (found.arrival_s, found.input_tokens, found.output_tokens))


def test_a_seed_gives_the_same_bytes_and_another_gives_others() -> None:
    one, same, other = (
        requests_of(f"gamma:10/s,burstiness=0.5,lengths=sharegpt,n=500,seed={s}") for s in (1, 1, 2)
    )
    assert _bytes(one) == _bytes(same) != _bytes(other)


def test_generated_requests_are_as_asked() -> None:
    poisson = requests_of("poisson:10/s,lengths=sharegpt,n=4000")
    gaps = np.diff(poisson.arrival_s)
    assert gaps.mean() == pytest.approx(0.1, rel=0.05) and gaps.std() == pytest.approx(0.1, rel=0.1)
    assert poisson.input_tokens.mean() == pytest.approx(161, rel=0.08)
    bursts = np.diff(requests_of("gamma:600/min,burstiness=0.25,input=1,output=1,n=4000").arrival_s)
    assert bursts.std() / bursts.mean() == pytest.approx(2, rel=0.1)
    closed = requests_of("concurrency:16,input=uniform(3,5),output=9,n=160,prefix=40")
    assert closed.concurrency == 16 and closed.prefixes is not None
    assert set(closed.input_tokens.tolist()) == {41} and closed.prefixes.of(5) == [0, 1]
    assert closed.notes == ("160 of 160 prompts are prefix=40 and one token",)


def test_a_log_is_taken_in_part_faster_and_strictly(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("input_tokens,output_tokens,arrival_s\n1,1,0\n2,2,4\n3,3,2\n")
    assert requests_of(f"trace:{log},n=2,speed=2").arrival_s.tolist() == [0, 2]
    with pytest.raises(FlintError, match="FL885"):
        requests_of(f"trace:{log},strict=on")
    assert set(requests_of(f"poisson:5/s,lengths={log},n=50").output_tokens.tolist()) == {1, 2, 3}
