"""Algorithms of collectives as MSCCL's XML, made here: correct ones, and how to spoil them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

#: A step: type, source, target, chunks, and the steps of other blocks that it waits for.
Place = tuple[str, int] | None
Block = tuple[int, int, int, int]  # rank, rank sent to, rank received from, channel


@dataclass
class Draft:
    """An algorithm by blocks, each a list of steps as attributes."""

    coll: str
    ranks: int
    chunks: int
    rooms: tuple[int, int, int]
    in_place: bool = True
    proto: str = ""
    blocks: dict[Block, list[dict[str, str]]] = field(default_factory=dict)

    def add(
        self,
        block: Block,
        kind: str,
        source: Place = None,
        target: Place = None,
        count: int = 1,
        after: Sequence[tuple[Block, int]] = (),
    ) -> tuple[Block, int]:
        """Append a step; a block and the place of the step in it. All but the last wait is a step of its own."""
        steps = self.blocks.setdefault(block, [])
        for waited in after[:-1]:
            self.add(block, "nop", after=[waited])
        (src, off), (dst, to) = source or target or ("i", -1), target or source or ("i", -1)
        step = {"type": kind, "srcbuf": src, "srcoff": off, "dstbuf": dst, "dstoff": to}
        step |= {"cnt": count, "depid": -1, "deps": -1, "hasdep": 0}
        if after:
            (other, number) = after[-1]
            step |= {"depid": self.id_of(other), "deps": number}
            self.blocks[other][number]["hasdep"] = "1"
        steps.append({k: str(v) for k, v in step.items()})
        return block, len(steps) - 1

    def id_of(self, block: Block) -> int:
        """The number of a block on its rank."""
        return [b for b in self.blocks if b[0] == block[0]].index(block)

    def text(self) -> str:
        """The file."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f'<algo name="{self.coll}" proto="{self.proto}" nchannels="1" '
            f'nchunksperloop="{self.chunks}" ngpus="{self.ranks}" coll="{self.coll}" '
            f'inplace="{int(self.in_place)}">'
        )
        for rank in range(self.ranks):
            rooms = " ".join(f'{b}_chunks="{n}"' for b, n in zip("ios", self.rooms, strict=True))
            yield f'<gpu id="{rank}" {rooms}>'
            for n, block in enumerate(b for b in self.blocks if b[0] == rank):
                yield f'<tb id="{n}" send="{block[1]}" recv="{block[2]}" chan="{block[3]}">'
                for s, step in enumerate(self.blocks[block]):
                    yield f'<step s="{s}" {" ".join(f"{k}={v!r}" for k, v in step.items())}/>'
                yield "</tb>"
            yield "</gpu>"
        yield "</algo>"


def ring(coll: str, order: Sequence[Sequence[int]], proto: str = "") -> Draft:
    """Rings through all ranks in some orders, one for each channel with its part of the chunks."""
    n, channels = len(order[0]), len(order)
    chunks, gathers = n * channels, coll == "allgather"
    draft = Draft(coll, n, chunks, (chunks, chunks, 0), proto=proto)
    for channel, ranks in enumerate(order):
        for at, rank in enumerate(ranks):
            block = rank, ranks[(at + 1) % n], ranks[at - 1], channel

            buffer = "o" if gathers else "i"
            chunk = [(buffer, ranks[at - back] * channels + channel) for back in range(n)]
            for turn in range(1, n) if not gathers else ():
                draft.add(block, "s", chunk[turn])
                draft.add(block, "rrc", chunk[(turn + 1) % n], chunk[(turn + 1) % n])
            for turn in range(n - 1) if coll != "reducescatter" else ():
                draft.add(block, "s", chunk[turn])
                draft.add(block, "r", None, chunk[turn + 1])
    return draft


def rotated(domains: int, members: int) -> list[list[int]]:
    """Orders of ranks that enter and leave each domain at another member each."""
    return [
        [d * members + (m + shift) % members for d in range(domains) for m in range(members)]
        for shift in range(members)
    ]


def chains(hosts: int, members: int, *, together: bool = False) -> Draft:
    """An all-reduce along a chain through the members of each host, and between two of their heads.

    `together`: one thread block goes up and down between two ranks.
    """
    n = hosts * members
    draft = Draft("allreduce", n, 1, (1, 1, 0))
    parent = {r: r - 1 if r % members else r - members for r in range(1, n)}
    return _tree(draft, parent, together)


def binary_tree(n: int) -> Draft:
    """An all-reduce up a binary tree and down again."""
    return _tree(Draft("allreduce", n, 1, (1, 1, 0)), {r: (r - 1) // 2 for r in range(1, n)})


def _tree(draft: Draft, parent: dict[int, int], together: bool = False) -> Draft:
    def block(rank: int, to: int, back: int) -> Block:
        return (rank, max(to, back), max(to, back), 0) if together else (rank, to, back, 0)

    here = ("i", 0)
    for rank in range(draft.ranks - 1, -1, -1):
        below = [r for r in parent if parent[r] == rank]
        done: list[tuple[Block, int]] = []
        for child in below:
            done = [draft.add(block(rank, -1, child), "rrc", here, here, after=done)]
        if rank:
            draft.add(block(rank, parent[rank], -1), "s", here, after=done)
            done = [draft.add(block(rank, -1, parent[rank]), "r", None, here)]
        for child in below:
            draft.add(block(rank, child, -1), "s", here, after=done)
    return draft


def recursive_doubling(n: int) -> Draft:
    """An all-reduce in which ranks exchange all that they have, with others that are further away each time."""
    draft, done = Draft("allreduce", n, 1, (1, 1, 0)), dict[int, list[tuple[Block, int]]]()
    for bit in range(n.bit_length() - 1):
        for rank in range(n):
            peer = rank ^ 1 << bit
            draft.add((rank, peer, peer, 0), "s", ("i", 0), after=done.get(rank, []))
            done[rank] = [draft.add((rank, peer, peer, 0), "rrc", ("i", 0), ("i", 0))]
    return draft


def direct_all_to_all(n: int) -> Draft:
    """Each rank sends its part to each other one."""
    draft = Draft("alltoall", n, n, (n, n, 0), in_place=False)
    for rank in range(n):
        draft.add((rank, -1, -1, 0), "cpy", ("i", rank), ("o", rank))
        for peer in (p for p in range(n) if p != rank):
            draft.add((rank, peer, peer, 0), "s", ("i", peer))
            draft.add((rank, peer, peer, 0), "r", None, ("o", peer))
    return draft


def hierarchical_all_gather(hosts: int, members: int) -> Draft:
    """To the same member of other hosts, then all that a member has to the others of its host."""
    n = hosts * members
    draft = Draft("allgather", n, n, (1, n, 0), in_place=False)
    for rank in range(n):
        mine = list(range(rank % members, n, members))
        got = [draft.add((rank, -1, -1, 0), "cpy", ("i", 0), ("o", rank))]
        for peer in (p for p in mine if p != rank):
            draft.add((rank, peer, peer, 0), "s", ("i", 0))
            got.append(draft.add((rank, peer, peer, 0), "r", None, ("o", peer)))
        host = rank - rank % members
        for peer in (p for p in range(host, host + members) if p != rank):
            waits = got
            for part in mine:
                draft.add((rank, peer, -1, 1), "s", ("o", part), after=waits)
                waits = []
            for part in range(peer % members, n, members):
                draft.add((rank, -1, peer, 1), "r", None, ("o", part))
    return draft
