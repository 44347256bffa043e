"""A file of MSCCL as a typed algorithm: what each thread block of each rank does, step by step.

Facts: the parser of RCCL (`src/misc/msccl/msccl_parser.cc`) and the writer of msccl-tools
(`msccl/language/ir.py`). A thread block runs its steps in order, has one peer that it sends to and one
that it receives from, and may wait for one step of another thread block of its rank at each step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from flint.errors import FlintError
from flint.io.bounded import FileKind, read_bounded
from flint.ir.op_class import Collective
from flint.ir.program import MOST_INT64

_COLLECTIVES = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
}
#: By type: whether it receives, reads the buffer `src`, adds up, writes the buffer `dst`, and sends.
_TYPES = {
    "s": "01001",
    "r": "10010",
    "rcs": "10011",
    "rrs": "11101",
    "rrc": "11110",
    "rrcs": "11111",
    "cpy": "01010",
    "re": "01110",
    "nop": "00000",
}
_PROTOCOLS = ("Simple", "LL", "LL128", "")
#: Chunks that all steps move, and that all ranks hold, above which nobody waits for an answer.
_MOST = 1 << 24


class ChunkPlace(NamedTuple):
    """Where chunks begin: a buffer ("i", "o" or "s") of a rank, and how many are before them."""

    buffer: str
    offset: int


@dataclass(frozen=True, slots=True)
class AlgorithmStep:
    """One step. `sends_to` and `from_rank` are -1 where it does not; `waits_for` is a thread block and its step.

    `source` is read and `target` written where they are not None. Another step may wait for it if it is `told`.
    """

    rank: int
    block: int
    number: int
    kind: str
    source: ChunkPlace | None
    target: ChunkPlace | None
    count: int
    sends_to: int
    from_rank: int
    channel: int
    waits_for: tuple[int, int] | None
    told: bool

    @property
    def adds(self) -> bool:
        """Whether it adds to what is there."""
        return _TYPES[self.kind][2] == "1"

    def __str__(self) -> str:
        return f"thread block {self.block}, step {self.number} ({self.kind})"


@dataclass(frozen=True, slots=True)
class WrittenAlgorithm:
    """A collective as steps of its ranks, in the order of ranks, thread blocks and steps.

    The array is in `chunks` pieces: the input of an all-reduce, all parts of an all-gather together. It is
    for arrays of `least` to `most` bytes.
    """

    name: str
    file: Path
    protocol: str
    collective: Collective
    ranks: int
    chunks: int
    in_place: bool
    least: int
    most: int
    steps: tuple[AlgorithmStep, ...] = ()

    @property
    def kind(self) -> str:
        """The collective as people write it."""
        return self.collective.name.lower().replace("_", "-")

    @property
    def part(self) -> int:
        """Chunks of a rank's part of the array."""
        whole = self.collective is Collective.ALL_REDUCE
        return self.chunks if whole else self.chunks // self.ranks

    @property
    def is_alike(self) -> bool:
        """Whether input and output are as large, so that in place they begin together."""
        return self.collective in (Collective.ALL_REDUCE, Collective.ALL_TO_ALL)

    def one_name(self, place: ChunkPlace, rank: int) -> ChunkPlace:
        """A place by the one name that it has in place, where input and output are one buffer."""
        whole = "o" if self.collective is Collective.ALL_GATHER else "i"
        if not self.in_place or place.buffer in (whole, "s"):
            return place
        return ChunkPlace(whole, place.offset + (0 if self.is_alike else rank * self.part))


def read_algorithm(path: Path) -> WrittenAlgorithm:
    """Read a file. Raises FlintError FL607 (not of MSCCL), FL608 (parts that do not fit together), FL609 (a collective unknown to Flint)."""
    data = read_bounded(path, FileKind.ALGORITHM, "FL607")
    return _Reader(path).algorithm(_tree(path, data))


def _tree(path: Path, data: bytes) -> Element:
    """The elements. A document type is refused: entities in it could grow without bound."""
    parser, builder = expat.ParserCreate(), TreeBuilder()

    def refuse(*_: object) -> None:
        raise FlintError("FL607", f"{path} has a document type, which no algorithm needs")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise FlintError("FL607", f"{path} is not XML: {error}") from error
    return builder.close()


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path

    def algorithm(self, root: Element) -> WrittenAlgorithm:
        if root.tag != "algo":
            raise self._wrong(f"its root is <{root.tag[:40]}>, not <algo>")
        ranks, chunks = self._number(root, "ngpus", 2), self._number(root, "nchunksperloop", 1)
        collective = _COLLECTIVES.get(root.get("coll", ""))
        if collective is None:
            known = ", ".join(n for n in _COLLECTIVES if "_" not in n)
            told = f"{self.path} is for the collective '{root.get('coll', '')[:40]}'"
            raise FlintError("FL609", told, help=f"Flint knows {known}")
        if root.get("proto", "") not in _PROTOCOLS:
            raise self._wrong(f"its proto is '{root.get('proto', '')[:40]}'")
        gpus = {self._number(gpu, "id", 0): gpu for gpu in root.findall("gpu")}
        if len(gpus) != len(root.findall("gpu")) or sorted(gpus) != list(range(ranks)):
            raise self._apart(f"ngpus is {ranks}, but its gpus are not 0 to {ranks - 1}")
        if collective is not Collective.ALL_REDUCE and chunks % ranks:
            raise self._apart(f"{chunks} chunks (nchunksperloop) are not divided by {ranks} ranks")
        in_place = self._number(root, "inplace", 0, "0") == 1
        name, protocol = root.get("name", "") or self.path.stem, root.get("proto", "")
        least = self._number(root, "minBytes", 0, "0")
        most = self._number(root, "maxBytes", 0, "0") or MOST_INT64  # 0 is no limit, as in RCCL
        found = WrittenAlgorithm(
            *(name, self.path, protocol, collective, ranks, chunks, in_place, least, most)
        )
        steps = [s for r in range(ranks) for s in self._rank(gpus[r], r, found)]
        if max(sum(s.count for s in steps), ranks * chunks) > _MOST:
            raise self._apart(f"it moves, or holds, more than {_MOST:,} chunks")
        return replace(found, steps=tuple(steps))

    def _rank(self, gpu: Element, rank: int, of: WrittenAlgorithm) -> Iterator[AlgorithmStep]:
        """The steps of a rank."""
        rooms = {b: self._number(gpu, f"{b}_chunks", 0) for b in "ios"}
        if of.in_place and of.is_alike:
            rooms["i"] = rooms["o"] = max(rooms["i"], rooms["o"])
        blocks = {self._number(tb, "id", 0): tb for tb in gpu.findall("tb")}
        if len(blocks) != len(gpu.findall("tb")):
            raise self._apart(f"gpu {rank} has two thread blocks of one id")
        for block, tb in sorted(blocks.items()):
            send, receive = self._number(tb, "send", -1, "-1"), self._number(tb, "recv", -1, "-1")
            channel = self._number(tb, "chan", 0, "0")
            for number, step in enumerate(tb.findall("step")):
                where = f"step {number} of thread block {block} of gpu {rank}"
                kind, count = step.get("type", ""), self._number(step, "cnt", 0, "1")
                if kind not in _TYPES:
                    raise self._wrong(f"{where} has the type '{kind[:40]}'")
                receives, reads, _, writes, sends = (flag == "1" for flag in _TYPES[kind])
                if self._number(step, "s", 0) != number:
                    raise self._apart(f"{where} has another number")
                if (sends and send < 0) or (receives and receive < 0):
                    raise self._apart(f"{where} has no rank to exchange data with")
                source, target = (
                    of.one_name(self._place(step, side, count, rooms), rank) if used else None
                    for side, used in (("src", reads), ("dst", writes))
                )
                waited = self._number(step, "depid", -1, "-1"), self._number(step, "deps", -1, "-1")
                yield AlgorithmStep(
                    *(rank, block, number, kind, source, target, count if kind != "nop" else 0),
                    *(send if sends else -1, receive if receives else -1, channel),
                    waits_for=waited if waited[0] >= 0 else None,
                    told=self._number(step, "hasdep", 0, "0") == 1,
                )

    def _place(self, step: Element, side: str, count: int, rooms: Mapping[str, int]) -> ChunkPlace:
        """Where a step reads or writes."""
        buffer, offset = step.get(f"{side}buf", ""), self._number(step, f"{side}off", 0)
        if buffer not in rooms:
            raise self._wrong(f"{side}buf is '{buffer[:40]}', not i, o or s")
        if offset + count > rooms[buffer]:
            told = f"a step uses chunk {offset + count - 1} of a buffer {buffer}"
            raise self._apart(f"{told} that has {rooms[buffer]}")
        return ChunkPlace(buffer, offset)

    def _number(self, element: Element, name: str, least: int, usual: str = "") -> int:
        text = element.get(name, usual)
        if not re.fullmatch(r"-?[0-9]{1,15}", text) or int(text) < least:
            raise self._wrong(f"{name} of <{element.tag[:40]}> is '{text[:40]}'")
        return int(text)

    def _wrong(self, told: str) -> FlintError:
        return FlintError("FL607", f"{self.path} is not an algorithm of MSCCL: {told}")

    def _apart(self, told: str) -> FlintError:
        return FlintError("FL608", f"{self.path}: {told}")
