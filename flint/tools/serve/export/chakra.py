"""The steps of a run as Chakra traces, one for each kind of step, and when which step ran."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from flint.backends.chakra.manifest import laid_out
from flint.backends.chakra.writing.output import refuse_output
from flint.backends.chakra.writing.simulator_files import Timing
from flint.backends.chakra.writing.writer import write
from flint.backends.cost.trace_timing import hardware_of, merged_kernels
from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.text import plural
from flint.tools.serve.document import (
    KindDocument,
    PoolDocument,
    RequestDocument,
    ServedScheduleDocument,
    StepDocument,
)
from flint.tools.serve.engine.record import Passes
from flint.tools.serve.engine.rules import EngineRules
from flint.tools.serve.export.steps import StepKind, kinds_of, sized_pass
from flint.tools.serve.export.table import readme
from flint.tools.serve.replay import Replay
from flint.tools.serve.serve import Served
from flint.tools.serve.step_times import PromptChunk

_SCHEDULE = "schedule.json"
_SCHEMA: Final = "flint.serve-schedule/1"


def refuse_steps(directory: Path, *, force: bool) -> None:
    """Raise FlintError FL501, FL502, FL505 or FL506 where steps cannot be written.

    `force` lets them replace those of an earlier run, which nobody changed.
    """
    if (directory / "manifest.json").exists():
        raise FlintError(
            "FL501", f"{directory} is a trace", help="name a new directory for the steps"
        )
    earlier = _earlier(directory) if force else []
    for folder in earlier:
        refuse_output(folder)
    if not earlier:
        refuse_output(directory)


def _earlier(directory: Path) -> list[Path]:
    """The folders that an earlier run says that it wrote, and that are still there."""
    try:
        said = json.loads((directory / _SCHEDULE).read_text("utf-8"))
        if said["schema"] != _SCHEMA:
            return []
        found = [directory / kind["folder"] for pool in said["pools"] for kind in pool["kinds"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # no schedule, or none of ours: the directory is refused as any other
    inside = directory.resolve()
    return [one for one in found if one.is_dir() and inside in one.resolve().parents]


def write_steps(found: Served, directory: Path, *, force: bool) -> None:
    """Write traces of each kind of step, `schedule.json` and a README.

    Raises FlintError FL909 for engines that draft and for a model whose ranks run several programs; what
    `refuse_steps` and `flint.backends.chakra.write` raise.
    """
    pools = [_Pool(found, number) for number in range(len(found.replay.pools))]
    for pool in pools:
        pool.require_steps()
    refuse_steps(directory, force=force)
    for old in _earlier(directory):
        shutil.rmtree(old)
    documents = [pool.written(directory) for pool in pools]
    schedule: ServedScheduleDocument = {
        "schema": _SCHEMA,
        "program": str(found.surfaces[0].setting.workload.metadata.get("name") or "program"),
        "load": found.replay.requests.source,
        "pools": documents,
        "requests": list(_requests(found.replay)),
        "steps": [step for pool in pools for step in pool.steps()],
    }
    data = laid_out(schedule).encode()
    write_output(directory / _SCHEDULE, data, OutputKind.SCHEDULE, force=force)
    said = readme("chakra", pools="\n".join(map(_said, documents)), load=schedule["load"])
    write_output(directory / "README.md", said, OutputKind.SERVING_TABLE, force=force)


class _Pool:
    """The steps of one pool."""

    def __init__(self, found: Served, number: int) -> None:
        names = ("prefill", "decode") if len(found.surfaces) > 1 else ("engine",)
        self.name, self.surface = names[number], found.surfaces[number]
        self.rules: EngineRules = found.replay.pools[number].rules
        self.passes = found.replay.passes[number]
        self.columns = [passes.columns for passes in self.passes]
        self.kinds, self.kind_of = kinds_of(self.columns)

    def require_steps(self) -> None:
        """Raise FlintError FL909 where there are none, or no single program of them."""
        why = ""
        if self.rules.draft_tokens:
            why = "passes that check drafts are parts of steps in a replay: leave out draft_tokens"
        elif len(self.surface.setting.kernels.programs) > 1:
            why = "ranks of the model run several programs, and a surface has one"
        if why:
            raise FlintError("FL909", f"steps cannot be written as traces: {why}")

    def written(self, directory: Path) -> PoolDocument:
        """Write the traces of all kinds, and say what they are."""
        kinds = [self._written(kind, directory) for kind in self.kinds]
        by_kind = np.array(
            [k["compute_ns"] + k["communication_ns"] + k["engine_ns"] for k in kinds]
        )
        took = np.concatenate([c.end_ns - c.start_ns for c in self.columns])
        meant = by_kind[np.concatenate(self.kind_of)]
        workload = self.surface.setting.workload
        return {
            "name": self.name,
            "cluster": self.surface.setting.cluster.name,
            "mesh": str(workload.mesh),
            "engines": len(self.passes),
            "busy_ns": round(float(took.sum())),
            "kinds_ns": int(meant.sum()),
            "mean_deviation": round(float(np.abs(took - meant).sum() / max(took.sum(), 1)), 6),
            "kinds": kinds,
        }

    def _written(self, kind: StepKind, directory: Path) -> KindDocument:
        engine, number = kind.chosen
        c, chunks = self.columns[engine], _chunks(self.passes[engine]).get(number, [])
        decodes, context = int(c.decodes[number]), int(c.context[number])
        prompts = [PromptChunk(new, before) for _, new, before in chunks]
        sized, ns = sized_pass(self.surface, decodes, context, prompts)
        setting, calls = self.surface.setting, sized.kind >= Kind.COLLECTIVE
        program, (durations,) = merged_kernels(sized, np.where(calls, 0.0, ns))
        hardware = hardware_of(setting.workload, setting.placement)
        folder = f"{self.name}/{kind.name}"
        as_kernels = setting.kernels.metadata
        write(
            Workload.single(program, as_kernels),
            directory / folder,
            keep=Workload.single(sized, as_kernels),
            timing=Timing(setting.cluster.name, (durations,), hardware),
        )
        spent = ns * sized.trips
        return {
            "name": kind.name,
            "folder": folder,
            "steps": kind.steps,
            "decodes": decodes,
            "decode_context": context,
            "prompts": [list(chunk[:2]) for chunk in prompts],
            "compute_ns": round(float(spent[~calls].sum())),
            "communication_ns": round(float(spent[calls].sum())),
            "engine_ns": round(
                self.rules.host_ns + self.surface.sequence_ns * (decodes + len(prompts))
            ),
        }

    def steps(self) -> Iterator[StepDocument]:
        """All steps of all engines."""
        for engine, (passes, c) in enumerate(zip(self.passes, self.columns, strict=True)):
            chunks, decoding = _chunks(passes), _decoding(passes)
            for number, kind in enumerate(self.kind_of[engine].tolist()):
                prompts = chunks.get(number, [])
                yield {
                    "pool": self.name,
                    "engine": engine,
                    "start_ns": round(float(c.start_ns[number])),
                    "duration_ns": round(float(c.end_ns[number] - c.start_ns[number])),
                    "kind": self.kinds[kind].name,
                    "batch": int(c.decodes[number] + c.prompts[number]),
                    "new_tokens": int(c.decodes[number] + c.new[number]),
                    "context": int(c.context[number]) + sum(before for *_, before in prompts),
                    "prompts": prompts,
                    "decodes": next(decoding) if c.decodes[number] else [],
                }


def _chunks(passes: Passes) -> dict[int, list[list[int]]]:
    """By the number of a pass its prompts: request, new tokens, tokens in the cache before."""
    found = defaultdict(list)
    for number, *chunk in np.array(passes.chunks, np.int64).reshape(-1, 4).tolist():
        found[number].append(chunk)
    return found


def _decoding(passes: Passes) -> Iterator[list[int]]:
    """The requests of each pass that decodes, one after another."""
    begin, end = defaultdict(list), defaultdict(list)
    for request, after, last in np.array(passes.decodes, np.int64).reshape(-1, 3).tolist():
        if last > after:  # else it was preempted before a pass
            begin[after + 1].append(request)
            end[last].append(request)
    running: dict[int, None] = {}
    for tick in itertools.count(1):
        running |= dict.fromkeys(begin[tick])
        yield list(running)
        for request in end[tick]:
            del running[request]


def _requests(found: Replay) -> Iterator[RequestDocument]:
    rows = zip(
        np.nan_to_num(found.times.queued, nan=-1).round().astype(np.int64).tolist(),
        found.requests.input_tokens.tolist(),
        found.requests.output_tokens.tolist(),
        strict=True,
    )
    for arrival, prompt, answer in rows:
        known = None if arrival < 0 else arrival
        yield {"arrival_ns": known, "input_tokens": prompt, "output_tokens": answer}


def _said(pool: PoolDocument) -> str:
    """What the README says of a pool."""
    if not pool["kinds"]:
        return f"- `{pool['name']}/`: no step."
    spent = {name: sum(k[name] * k["steps"] for k in pool["kinds"]) for name in _PARTS}
    shares = ", ".join(f"{ns / pool['kinds_ns']:.1%} {name[:-3]}" for name, ns in spent.items())
    return (
        f"- `{pool['name']}/`: {len(pool['kinds'])} kinds of {sum(k['steps'] for k in pool['kinds']):,} steps of "
        f"{plural(pool['engines'], 'engine')} ({pool['mesh']} on {pool['cluster']}). Their traces, as often as "
        f"their steps ran, take {pool['kinds_ns'] / 1e9:.6g} s, {pool['kinds_ns'] / pool['busy_ns'] - 1:+.2%} off the "
        f"{pool['busy_ns'] / 1e9:.6g} s that the engines were busy ({shares}); a step is on average "
        f"{pool['mean_deviation']:.1%} off its kind."
    )


_PARTS: Final = ("compute_ns", "communication_ns", "engine_ns")
