"""Where a model is cut into pipeline stages: what the user wrote, and how layers are shared out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flint.errors import FlintError

_HELP = 'write "layers", "layers:balanced", "layers:8,16,24" or scopes: "encoder/3,decoder"'


@dataclass(frozen=True)
class LayerCuts:
    """Stages of consecutive layers of the one list, scan or module list called `name`.

    A new stage begins at each of `indices`. Where there are none, `balanced` says whether the
    stages get equal estimated FLOPs or equal numbers of layers.
    """

    name: str
    indices: tuple[int, ...] = ()
    balanced: bool = False


@dataclass(frozen=True)
class ScopeCuts:
    """A new stage begins at each of these scopes, in this order."""

    scopes: tuple[str, ...]


def parse_cut(text: str, stages: int) -> LayerCuts | ScopeCuts:
    """Read `Pipeline.cut` for that many stages; empty text is "layers".

    Raises FlintError FL241 (not a cut, indices not ascending, or not `stages` - 1 points).
    """
    name, colon, rest = (text.strip() or "layers").partition(":")
    if colon:
        return _layer_cuts(name.strip(), rest.strip(), text, stages)
    parts = tuple(p.strip().strip("/") for p in name.split(","))
    if not all(parts):
        raise FlintError("FL241", f"cut '{text}' has an empty name", help=_HELP)
    if len(parts) == 1 and (stages != 2 or parts[0].split("/")[-1] == "layers"):
        return LayerCuts(parts[0])
    _check_count(len(parts), text, stages)
    return ScopeCuts(parts)


def _layer_cuts(name: str, rest: str, text: str, stages: int) -> LayerCuts:
    if rest == "balanced" and name:
        return LayerCuts(name, balanced=True)
    if not name or not re.fullmatch(r"\d+(\s*,\s*\d+)*", rest):
        raise FlintError("FL241", f"cannot read cut '{text}'", help=_HELP)
    indices = tuple(int(i) for i in rest.split(","))
    _check_count(len(indices), text, stages)
    if list(indices) != sorted(set(indices)):
        raise FlintError(
            "FL241",
            f"the cut points of '{text}' do not ascend",
            help="give the index of the first layer of each stage except the first",
        )
    return LayerCuts(name, indices)


def _check_count(points: int, text: str, stages: int) -> None:
    if points != stages - 1:
        raise FlintError(
            "FL241",
            f"cut '{text}' has {points} cut points, which make {points + 1} stages, but the pipeline has {stages}",
            help=f"give {stages - 1} cut points, or change the pipeline's axis or chunks",
        )


def layer_starts(
    cut: LayerCuts,
    count: int,
    stages: int,
    layer_flops: Sequence[int] = (),
    before_flops: int = 0,
    after_flops: int = 0,
    place: str | None = None,
) -> tuple[int, ...]:
    """The first layer of every stage but the first, of `count` layers.

    `layer_flops` (one for each layer), `before_flops` and `after_flops` matter to balanced cuts
    alone. Raises FlintError: FL242 (more stages than layers), FL241 (an index outside 1..count-1).
    """
    if stages > count:
        raise FlintError(
            "FL242",
            f"{stages} stages need at least as many layers, but '{cut.name}' has {count}",
            place=place,
            help="make the pipeline's axis smaller, use fewer chunks, or add layers",
        )
    if cut.indices:
        for index in cut.indices:
            if not 0 < index < count:
                raise FlintError(
                    "FL241",
                    f"no stage can begin at layer {index}: '{cut.name}' has {count} layers",
                    place=place,
                    help=f"cut points lie in 1..{count - 1}",
                )
        return cut.indices
    if cut.balanced:
        sizes = balanced_sizes(layer_flops, stages, before_flops, after_flops)
    else:
        sizes = even_sizes(count, stages)
    return tuple(sum(sizes[:i]) for i in range(1, stages))


def even_sizes(count: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as even as can be; earlier stages get one more."""
    each, more = divmod(count, stages)
    return tuple(each + (s < more) for s in range(stages))


def balanced_sizes(
    flops: Sequence[int], stages: int, before: int = 0, after: int = 0
) -> tuple[int, ...]:
    """Layers of each stage, at least one, such that the largest stage is as small as can be.

    The first stage also does `before`, the last one `after`. The smallest possible largest stage
    is found by bisection; of the ways to reach it, the one with the smallest sum of squares is
    taken, which keeps the other stages even.
    """
    low, high = max([0, *flops]), sum(flops) + before + after
    while low < high:
        middle = (low + high) // 2
        if _fits(flops, stages, before, after, middle):
            high = middle
        else:
            low = middle + 1
    return _evenest(flops, stages, before, after, high)


def _fits(flops: Sequence[int], stages: int, before: int, after: int, bound: int) -> bool:
    """Whether no stage is above `bound` if each takes as many layers as it can, and one at least."""
    done = 0
    for later in reversed(range(stages)):
        load = (before if done == 0 else 0) + (after if later == 0 else 0)
        first = done
        while done < len(flops) - later and load + flops[done] <= bound:
            load += flops[done]
            done += 1
        if done == first:
            return False
    return done == len(flops)


def _evenest(
    flops: Sequence[int], stages: int, before: int, after: int, bound: int
) -> tuple[int, ...]:
    """Sizes with no stage above `bound`, which fits, and the smallest sum of squares."""
    found: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}  # layers done: squares, sizes
    for stage in range(stages):
        extra = (before if stage == 0 else 0) + (after if stage == stages - 1 else 0)
        later = stages - 1 - stage
        following: dict[int, tuple[int, tuple[int, ...]]] = {}
        for done, (squares, sizes) in found.items():
            load = extra
            for end in range(done + 1, len(flops) - later + 1):
                load += flops[end - 1]
                if load > bound:
                    break
                candidate = (squares + load * load, (*sizes, end - done))
                if end not in following or candidate[0] < following[end][0]:
                    following[end] = candidate
        found = following
    return found[len(flops)][1]


def split_layers(
    count: int,
    stages: int,
    split: str | Sequence[int],
    name: str,
    around: tuple[int, int, int] = (0, 1, 0),
) -> list[int]:
    """How many of `count` layers each of `stages` stages gets; at least one.

    `around` are the FLOPs before, of one and after the layers, for the split "balanced". Raises
    FlintError: FL242 (a stage without layers), FL240 (a split that is none).
    """
    if stages > count:
        raise FlintError(
            "FL242",
            f"{stages} stages for {count} layers of '{name}': {stages - count} would be empty",
            help=f"use at most {count} stages: a smaller pipeline axis or fewer chunks",
        )
    if split == "uniform":
        return list(even_sizes(count, stages))
    if split == "balanced":
        before, each, after = around
        return list(balanced_sizes([each or 1] * count, stages, before, after))
    if isinstance(split, str):
        raise FlintError(
            "FL240",
            f"there is no split '{split}' of layers",
            help='choose "uniform", "balanced" or a list of numbers of layers',
        )
    return _by_list(count, stages, list(split), name)


def _by_list(count: int, stages: int, numbers: list[int], name: str) -> list[int]:
    if len(numbers) != stages or sum(numbers) != count:
        raise FlintError(
            "FL240",
            f"the split {numbers} of '{name}' has {len(numbers)} numbers that add up to "
            f"{sum(numbers)}, for {stages} stages and {count} layers",
            help="give one number of layers per stage, which add up to all layers",
        )
    for stage, number in enumerate(numbers):
        if number < 1:
            raise FlintError(
                "FL242",
                f"the split {numbers} of '{name}' leaves stage {stage} without layers",
                help="give each stage at least one layer",
            )
    return numbers
