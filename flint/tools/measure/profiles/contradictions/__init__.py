"""What a profile says against itself: refused where nothing can be made of it, else told."""

from flint.tools.measure.profiles.contradictions.check import refuse, told
from flint.tools.measure.profiles.contradictions.ranks import Checked

__all__ = ["Checked", "refuse", "told"]
