"""All rules, in one place: what refuses a profile, what is told of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flint.errors import FlintError
from flint.tools.measure.profiles.contradictions import ranks, sizes, times
from flint.tools.measure.profiles.contradictions.finding import Checked, Rule
from flint.tools.measure.profiles.profile import Profile

#: Nothing can be made of a profile that says one of these, by the code of the error.
REFUSED: Mapping[str, tuple[Rule, ...]] = {
    "FL833": (
        ranks.world_is_too_large,
        ranks.rank_is_outside,
        ranks.group_is_outside,
        ranks.group_repeats_a_rank,
        ranks.group_is_of_another_size,
        ranks.rank_is_not_in_its_group,
        ranks.peer_is_outside,
        ranks.permutation_meets,
    ),
    "FL834": (times.everything_is_twice,),
    "FL835": (sizes.size_is_negative, sizes.dimension_is_negative),
}
#: What these say is wrong somewhere: the numbers are as the profile has them.
TOLD: tuple[Rule, ...] = (
    ranks.message_to_itself,
    ranks.group_has_two_lists,
    times.something_is_twice,
    times.stream_overlaps,
    times.kernel_is_too_long,
    times.pause_is_too_long,
    times.kernels_take_no_time,
    times.kernel_runs_before_its_launch,
    times.steps_overlap,
    times.operators_cross,
    times.gradient_comes_first,
    times.call_of_another_vendor,
    sizes.sizes_of_collective_differ,
    sizes.splits_do_not_add_up,
    sizes.collective_is_too_large,
    sizes.tensor_is_too_large,
    sizes.memory_is_exceeded,
    sizes.copy_is_too_fast,
    sizes.kernel_is_too_fast,
    sizes.shapes_do_not_fit,
)
_HELP = {
    "FL833": "the file is damaged, or was merged from several jobs: record it again",
    "FL834": "a tool joined a file with itself: give the profiler's own file",
    "FL835": "the file is damaged, or a tool wrote it: give the profiler's own file",
}


def refuse(profiles: Mapping[int, Profile], world: int) -> None:
    """Raise FlintError FL833 (ranks and groups), FL834 (everything twice), FL835 (sizes below 0)."""
    for rank, profile in profiles.items():
        checked = Checked(rank, world, profile, np.arange(len(profile.activities.start_ns)))
        for code, rules in REFUSED.items():
            for rule in rules:
                for sentence in rule(checked):
                    raise FlintError(
                        code, f"the profile contradicts itself: {sentence}", help=_HELP[code]
                    )


def told(checked: Checked) -> list[str]:
    """What else cannot be, in sentences."""
    return [f"contradiction: {sentence}" for rule in TOLD for sentence in rule(checked)]
