"""Execution traces of the host joined with the profiles of the same run.

PyTorch numbers calls of operators: `rf_id` in an execution trace, `Record function id` in a profile.
Profilers of 2023 do not write the number down. There the calls of a thread are looked for in the same
order, wherever the profile repeats it: an execution trace may hold one step of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.tools.measure.profiles.execution_trace.build import HOST_ALONE
from flint.tools.measure.profiles.profile import Profile, Signature

#: Two files are of one run if so many of the numbers that both have name the same operators.
_SAME = 0.95
#: Steps of a profile in which an execution trace is looked for.
_MOST_TRIED = 4096


def paired(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """Profiles with times, each with what the execution trace of its rank says.

    Partners have the same rank, or the same place among theirs. Raises FlintError FL820 for an
    execution trace without a partner, FL822 for partners that are not of one run.
    """
    hosts = [p for p in profiles if p.format == HOST_ALONE]
    timed = [p for p in profiles if p.format != HOST_ALONE]
    if not hosts:
        return tuple(timed)
    partners = _partners(hosts, timed)
    return tuple(join(partners[i], p) if i in partners else p for i, p in enumerate(timed))


def _partners(hosts: list[Profile], timed: list[Profile]) -> dict[int, Profile]:
    """Execution traces by the place of their partner."""
    ranks = {p.rank: i for i, p in enumerate(timed) if p.rank >= 0}
    by_rank = len(ranks) == len(timed) and all(h.rank in ranks for h in hosts)
    places = [ranks[h.rank] for h in hosts] if by_rank else list(range(len(hosts)))
    if len(set(places)) < len(hosts) or max(places) >= len(timed):
        raise FlintError(
            "FL820",
            f"{len(hosts)} execution traces of the host, {len(timed)} profiles with times: an "
            "execution trace has no times",
            help="give the Kineto file of the same run beside it: flint import et.json kineto.json",
        )
    return dict(zip(places, hosts, strict=True))


def join(host: Profile, device: Profile) -> Profile:
    """`device` with signatures, results, tensors and groups of the execution trace `host`.

    Raises FlintError FL822 if the two are not of one run.
    """
    pairs = _pairs(host, device)
    mine, theirs = device.operators, host.operators
    signatures, comms = dict.fromkeys(device.signatures), dict.fromkeys(device.comms)
    added = []
    for at, of in pairs:
        own, number = int(mine.signature[at]), int(theirs.signature[of])
        if number >= 0:
            known = device.signatures[own] if own >= 0 else None
            added.append((at, _merged(known, host.signatures[number])))
    signatures.update(dict.fromkeys(s for _, s in added))
    number_of = {s: i for i, s in enumerate(signatures)}
    signature = mine.signature.copy()
    for at, merged in added:
        signature[at] = number_of[merged]
    comms.update(dict.fromkeys(host.comms))
    comm_number = {c: i for i, c in enumerate(comms)}
    comm, tensors = mine.comm.copy(), mine.tensors.copy()
    for at, of in pairs:
        if comm[at] < 0 <= theirs.comm[of]:
            comm[at] = comm_number[host.comms[theirs.comm[of]]]
        tensors[at] = theirs.tensors[of]
    return replace(
        device,
        operators=replace(mine, signature=signature, comm=comm, tensors=tensors),
        signatures=tuple(signatures),
        comms=tuple(c.placed(host.groups) for c in comms),
        tensors=host.tensors,
        groups={**host.groups, **device.groups},
        rank=device.rank if device.rank >= 0 else host.rank,
        world_size=device.world_size or host.world_size,
    )


def _pairs(host: Profile, device: Profile) -> list[tuple[int, int]]:
    """Rows of operators with the same number and name. Raises FlintError FL822."""
    if len(device.operators.record) and (device.operators.record < 0).all():
        return _in_order(host, device)
    known = {n: i for i, n in enumerate(host.operators.record.tolist()) if n >= 0}
    shared = [(at, known[n]) for at, n in enumerate(device.operators.record.tolist()) if n in known]
    same = [
        (at, of)
        for at, of in shared
        if device.strings[device.operators.name[at]] == host.strings[host.operators.name[of]]
    ]
    if not shared or len(same) < _SAME * len(shared):
        found = (
            f"{len(same):,} of {len(shared):,} operators with the same number have the same name"
        )
        raise FlintError(
            "FL822",
            f"an execution trace and a profile are not from one run: {found}",
            help="record both at once: profile(..., execution_trace_observer=observer)",
        )
    return same


def _in_order(host: Profile, device: Profile) -> list[tuple[int, int]]:
    """Rows of calls whose names come in the same order on a thread. Raises FlintError FL822."""
    operators = {device.strings[n]: n for n in np.unique(device.operators.name).tolist()}
    names = np.array([operators.get(s, -1) for s in host.strings])[host.operators.name]
    pairs: list[tuple[int, int]] = []
    met = 0
    for calls in _threads(host):
        found = [
            mine[at : at + len(calls)]
            for mine in _threads(device)
            for at in _places(names[calls], device.operators.name[mine])
        ]
        met += len(calls) if found else 0
        pairs += [(int(a), int(b)) for mine in found for a, b in zip(mine, calls, strict=True)]
    if not pairs or met < _SAME * len(names):
        raise FlintError(
            "FL822",
            f"an execution trace and a profile are not from one run: {met:,} of {len(names):,} "
            "operators of the trace appear in the same order in the profile, which does not "
            "number them",
            help="record both at once: profile(..., execution_trace_observer=observer)",
        )
    return [(a, b) for a, b in pairs if names[b] == device.operators.name[a]]


def _threads(profile: Profile) -> list[NDArray[np.int64]]:
    thread = profile.operators.thread
    return [np.flatnonzero(thread == t) for t in np.unique(thread).tolist()]


def _places(wanted: NDArray[np.int64], there: NDArray[np.int32]) -> list[int]:
    """Where a sequence of names begins in another, one behind the other, nearly the same each time.

    Places are tried where the name stands that is rarest there.
    """
    if not len(wanted):
        return []
    values, counts = np.unique(there, return_counts=True)
    often = dict(zip(values.tolist(), counts.tolist(), strict=True))
    known = [(often[n], i) for i, n in enumerate(wanted.tolist()) if n in often]
    if len(known) < _SAME * len(wanted):
        return []
    _, at = min(known)
    found: list[int] = []
    for place in (np.flatnonzero(there == wanted[at]) - at).tolist()[:_MOST_TRIED]:
        free = place >= (found[-1] + len(wanted) if found else 0)
        if free and place + len(wanted) <= len(there):
            same = there[place : place + len(wanted)] == wanted
            found += [place] if same.mean() >= _SAME else []
    return found


def _merged(mine: Signature | None, theirs: Signature) -> Signature:
    """Results of the execution trace; arguments as well where the profile has no shapes."""
    if mine is None or not any(map(len, mine.shapes)):
        return theirs
    lists = theirs.lists if len(theirs.lists) == len(mine.shapes) else mine.lists
    types = mine.types
    if len(theirs.types) == len(types):  # a list's types are in the execution trace alone
        both = zip(types, theirs.types, theirs.lists, strict=True)
        types = tuple(t if inside else m for m, t, inside in both)
    return replace(mine, outputs=theirs.outputs, lists=mine.lists or lists, types=types)
