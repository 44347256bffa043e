"""Switches of a program that change its kernels, and that a recording does not follow."""

from __future__ import annotations

import sys


def switches_not_followed() -> tuple[str, ...]:
    """A sentence for the user on each that the program that ran in this process left on."""
    config = sys.modules.get("torch._inductor.config")
    if not getattr(config, "_micro_pipeline_tp", False):
        return ()
    sentence = (
        "async tensor parallelism was not followed: its all-gathers and reduce-scatters are "
        "recorded whole, before and after their products; they hide behind these when it runs"
    )
    return (sentence,)
