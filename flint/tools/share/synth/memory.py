"""What a generator remembers of the programs that it has learned from: their steps, and sizes that are no rule's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from flint.io.malformed import Malformed
from flint.io.npz import column_of, text_of
from flint.io.records import Count, Positive, record
from flint.ir.mesh import Mesh
from flint.ir.program import Int64s
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.scene import Scene
from flint.tools.share.synth.codec.template import UNKNOWN, Template, Vocabulary
from flint.tools.share.synth.codec.writer import retyped


class _About(TypedDict):
    templates: list[list[Any]]
    scenes: list[tuple[tuple[Positive, ...], Count]]


@dataclass(frozen=True, eq=False)
class Memory:
    """Programs one behind another: entry i of `steps` is the number of a step's template in `templates`; what
    it reads are `operands[first[i]:first[i + 1]]`, as numbers of steps back. Program p has steps
    `start[p]:start[p + 1]`, sizes `sizes[sized[p]:sized[p + 1]]`, and was of `scenes[p]`: sizes of axes, depth.
    """

    templates: tuple[Template, ...]
    steps: NDArray[np.int32]
    start: Int64s
    first: Int64s
    operands: NDArray[np.int32]
    sizes: Int64s
    sized: Int64s
    scenes: tuple[tuple[tuple[int, ...], int], ...]

    def __len__(self) -> int:
        return len(self.start) - 1

    @classmethod
    def of(cls, programs: Iterable[Steps]) -> Memory:
        """The steps of programs, in the order in which they come."""
        numbers: dict[Template, int] = {}
        templates: list[int] = []
        start, first, operands, sizes, sized = [0], [0], list[int](), list[int](), [0]
        scenes = []
        for steps in programs:
            for number, template in enumerate(steps.templates):
                templates.append(numbers.setdefault(template, len(numbers)))
                operands.extend(number - o for o in steps.operands[number])
                first.append(len(operands))
            start.append(len(templates))
            sizes.extend(steps.symbols.taken)
            sized.append(len(sizes))
            scenes.append((steps.scene.mesh.sizes, steps.scene.depth))
        return cls(
            tuple(numbers),
            np.array(templates, np.int32),
            np.array(start, np.int64),
            np.array(first, np.int64),
            np.array(operands, np.int32),
            np.array(sizes, np.int64),
            np.array(sized, np.int64),
            tuple(scenes),
        )

    def recalled(self, program: int, names: tuple[str, ...]) -> Steps | None:
        """A program as it was, on a mesh of axes with these names; None for one with rows of no rule."""
        low, high = int(self.start[program]), int(self.start[program + 1])
        axes, depth = self.scenes[program]
        scene = Scene(Mesh(names, axes), depth)
        found = Steps(scene)
        for place in range(low, high):
            template = self.templates[int(self.steps[place])]
            if template == UNKNOWN:
                return None
            back = self.operands[self.first[place] : self.first[place + 1]]
            found.add(template, (place - low - back).tolist())
        sizes = self.sizes[self.sized[program] : self.sized[program + 1]]
        return retyped(found, scene, sizes.tolist())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As a file keeps it."""
        about = {"templates": Vocabulary(self.templates).to_json(), "scenes": self.scenes}
        vocabulary = Vocabulary(self.templates)
        numbers = np.array([vocabulary.number(t) for t in self.templates], np.int64)
        text = json.dumps(about, separators=(",", ":"), sort_keys=True)
        return {
            "memory_about": np.frombuffer(text.encode(), np.uint8),
            "memory_steps": numbers[self.steps].astype(np.uint16),
            "memory_start": self.start.astype(np.uint32),
            "memory_counts": np.diff(self.first).astype(np.uint8),
            "memory_operands": self.operands.astype(np.uint16),
            "memory_sizes": self.sizes,
            "memory_sized": self.sized.astype(np.uint32),
        }

    @classmethod
    def from_arrays(cls, stored: Mapping[str, NDArray[Any]]) -> Memory:
        """What `arrays` gave. Raises Malformed for arrays that contradict themselves."""
        about = record(_About, text_of(stored, "memory_about"))
        types = {"steps": "uint16", "start": "uint32", "counts": "uint8", "operands": "uint16"}
        types |= {"sizes": "int64", "sized": "uint32"}
        steps, start, counts, operands, sizes, sized = (
            column_of(stored, f"memory_{name}", dtype).reshape(-1).astype(np.int64)
            for name, dtype in types.items()
        )
        found = cls(
            Vocabulary.of(about["templates"]).templates,
            steps.astype(np.int32),
            start,
            np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
            operands.astype(np.int32),
            sizes,
            sized,
            tuple(about["scenes"]),
        )
        found._require_whole()
        return found

    def _require_whole(self) -> None:
        steps = len(self.steps)
        whole = len(self.start) > 1 and self.start[0] == 0 and self.start[-1] == steps
        whole = whole and len(self.first) == steps + 1 and self.first[-1] == len(self.operands)
        whole = whole and bool((np.diff(self.start) > 0).all()) and len(self.scenes) == len(self)
        whole = whole and len(self.sized) == len(self.start) and self.sized[0] == 0
        whole = whole and bool((np.diff(self.sized) >= 0).all() and (self.sizes >= 0).all())
        whole = whole and self.sized[-1] == len(self.sizes)
        if not whole or self.steps.max(initial=0) >= len(self.templates):
            raise Malformed("its memory contradicts itself")
        owner = np.repeat(np.arange(steps), np.diff(self.first))
        begins = self.start[np.searchsorted(self.start, owner, "right") - 1]
        if (self.operands < 1).any() or (owner - self.operands < begins).any():
            raise Malformed("a step of its memory reads none of its program")
