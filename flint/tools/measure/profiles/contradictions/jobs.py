"""What profiles of several ranks of one job say against each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from flint.ir.program import Collective
from flint.tools.measure.profiles.comms import collective_of, described, input_bytes
from flint.tools.measure.profiles.ranks import Key, Recorded, communication_of

#: Collectives whose members all put in as much.
_EQUAL = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.NONE)


def told_of_job(recorded: Sequence[Recorded], world: int) -> list[str]:
    """Collectives and messages of which two ranks say different kinds or sizes."""
    said: dict[Key, set[tuple[Collective, int]]] = defaultdict(set)
    for one in recorded:
        for key, row in communication_of(one, world).items():
            comm = described(one.profile, row, world)
            assert comm is not None, "what has a key is described"
            kind, sent = collective_of(comm.name), input_bytes(comm)
            said[key].add((kind, sent if kind in _EQUAL else 0))
    differ = Counter(len(key[0]) for key, each in said.items() if len(each) > 1)
    if not differ:
        return []
    said_of = f"for {sum(differ.values()):,} collectives or messages two ranks state"
    hangs = "a cluster would hang there, or the profiles are not from one step"
    return [f"contradiction: {said_of} different kinds or sizes: {hangs}"]
