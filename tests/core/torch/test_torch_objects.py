"""Collectives of Python objects in a world of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from flint.errors import FlintError
from flint.frontends.torch_world.record.handover import Handover
from flint.frontends.torch_world.runtime.objects import OBJECT_COLLECTIVES, Objects


@contextmanager
def rank_of_four(rank: int, known: Mapping[str, bytes] | None = None) -> Iterator[Handover]:
    dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    handover = Handover(known or {})
    objects = Objects(handover)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in OBJECT_COLLECTIVES:
                patch.setattr(dist, name, getattr(objects, name))
            yield handover
    finally:
        dist.destroy_process_group()


def test_gathers_give_copies_of_the_object_of_this_rank() -> None:
    mine = {"tokens": [1]}
    gathered: list[Any] = [None] * 4
    with rank_of_four(2):
        dist.all_gather_object(gathered, mine)
        assert gathered == [mine] * 4 and gathered[0] is not mine
        elsewhere: list[Any] = [None] * 4
        dist.gather_object(mine, elsewhere, dst=0)
        assert elsewhere == [None] * 4
        dist.gather_object(mine, elsewhere, group_dst=2)
        assert elsewhere == [mine] * 4
        dist.monitored_barrier()


def test_what_rank_0_broadcasts_and_scatters_reaches_the_next_process() -> None:
    with rank_of_four(0) as first:
        dist.broadcast_object_list(["run-1", 7], src=0)
        dist.broadcast_object_list([3], src=0)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, ["a", "b", "c", "d"], src=0)
        assert mine == ["a"]
    with rank_of_four(3, first.found):
        received: list[Any] = [None, None]
        dist.broadcast_object_list(received, src=0)
        assert received == ["run-1", 7]
        number: list[Any] = [None]
        dist.broadcast_object_list(number, src=0)
        assert number == [3]
        dist.scatter_object_list(mine, None, src=0)
        assert mine == ["d"]


def test_objects_that_all_ranks_made_need_no_sender() -> None:
    with rank_of_four(1):
        made = ["run-1"]
        dist.broadcast_object_list(made, src=0)
        assert made == ["run-1"]


def test_an_object_of_a_rank_that_did_not_run_is_an_error() -> None:
    with rank_of_four(1):
        with pytest.raises(FlintError, match="rank 0, which was not recorded") as caught:
            dist.broadcast_object_list([None], src=0)
        assert caught.value.code == "FL235"
        dist.send_object_list([1], dst=0)
        with pytest.raises(FlintError, match="recv_object_list"):
            dist.recv_object_list([None], src=0)
