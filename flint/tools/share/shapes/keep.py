"""How far totals may move: `--keep 2%`."""

from __future__ import annotations

import math

from flint.errors import FlintError

#: What is kept where nobody says.
DEFAULT_KEEP = 0.02
#: Wider bounds say little of the step that was shared.
MOST_KEEP = 0.25


def keep_of(value: float | str) -> float:
    """A bound as a share: of `2%`, `2 %`, `0.02` or a number. Raises FlintError FL907 for others."""
    share = _share(value)
    if share is None or not math.isfinite(share) or not 0 < share <= MOST_KEEP:
        shown = value if isinstance(value, str) else repr(value)
        raise FlintError(
            "FL907",
            f"totals cannot be kept within '{str(shown)[:40]}'",
            help=f"give a share above 0 and up to {MOST_KEEP:.0%}: 2% or 0.02",
        )
    return share


def _share(value: float | str) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    text = value.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
