"""Why points are not ranked: those with one reason together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flint.tools.explore.result import Result, Status


@dataclass(frozen=True, slots=True)
class Rejected:
    """`count` points with one reason; `example` is the one that came nearest: that needs least memory."""

    status: Status
    code: str
    count: int
    example: Result


def rejected_groups(results: Sequence[Result]) -> Iterator[Rejected]:
    """Points that do not fit, or were refused or failed, the largest group first.

    Those that do not fit are two groups: with the memory of their estimate, and with a bound of it;
    others go by code and place.
    """
    groups: dict[tuple[Status, str, str, bool], list[Result]] = {}
    for r in results:
        if r.status is not Status.FITS:
            place = r.place if r.code else ""
            groups.setdefault((r.status, r.code, place, r.is_bound), []).append(r)
    for (status, code, _, _), found in sorted(groups.items(), key=lambda g: (-len(g[1]), g[0])):
        nearest = min(found, key=lambda r: (r.memory_bytes, r.point))
        yield Rejected(status, code, len(found), nearest)
