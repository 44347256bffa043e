"""Kineto's JSON: what each kind of event becomes, and what bad files are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from flint.frontends.profiles.formats import read_profiles

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "kineto"


def test_a_rank_of_eight() -> None:
    (profile,) = read_profiles(DATA / "b200_eager_rank0of8.json.gz")
    assert (profile.rank, profile.world_size, profile.device) == (0, 8, "NVIDIA B200")
    assert profile.processors == 148
    (comm,) = profile.comms
    assert (comm.name, comm.in_elements, comm.dtype) == ("_allgather_base", 25136, "BFloat16")
    assert comm.ranks == tuple(range(8))


@pytest.mark.parametrize("device", ["h100", "mi300x"])
def test_shapes_are_those_of_the_file(device: str) -> None:
    (profile,) = read_profiles(DATA / f"{device}_bert-small.json.gz")
    shapes = {s.shapes[0] for s in profile.signatures if s.shapes}
    assert (1, 141, 512) in shapes
