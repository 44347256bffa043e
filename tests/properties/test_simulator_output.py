"""What a simulator prints is read alike however it comes, and nothing that it prints is believed too soon."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flint.tools.simulators.astra_sim import Listener
from flint.tools.simulators.process import Lines

WORLD = 4
FINISHED = "sys[{}] finished, {} cycles, exposed communication {} cycles."
ranks = st.permutations(range(WORLD))
noise = st.lists(st.text(max_size=30).filter(lambda t: "sys[" not in t), max_size=6)


def heard(pieces: list[bytes]) -> Listener:
    listener = Listener(WORLD, None)
    lines = Lines(listener)
    for piece in pieces:
        lines.feed(piece)
    lines.close()
    return listener


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(ranks, noise, st.lists(st.integers(0, 10**6), max_size=8))
def test_pieces_order_and_noise_change_nothing(
    order: list[int], around: list[str], places: list[int]
) -> None:
    said = [FINISHED.format(rank, 100 + rank, 7) for rank in order]
    text = "\n".join([*around, *said, *reversed(around)]) + "\n"
    found = heard(cut(text.encode(errors="replace"), places))
    assert {r: (e.end_ns, e.exposed_ns) for r, e in found.ends().items()} == {
        rank: (100 + rank, 7) for rank in range(WORLD)
    }
    assert found.missing == [] and found.notes == ()


@given(st.integers(0, len(FINISHED.format(3, 123456, 789))))
def test_half_a_line_says_no_wrong_number(length: int) -> None:
    """A simulator that crashes leaves its last line where it stood."""
    end = heard([FINISHED.format(3, 123456, 789).encode()[:length]]).ends().get(3)
    assert end is None or end.end_ns == 123456
    assert end is None or end.exposed_ns in (None, 789)


@given(st.binary(max_size=300))
def test_any_bytes_are_borne(data: bytes) -> None:
    assert len(heard([data]).missing) == WORLD or b"finished" in data
