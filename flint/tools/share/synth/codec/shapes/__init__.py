"""How shapes of results follow from what rows read: one rule a way, named in templates."""

from collections.abc import Mapping

from flint.tools.share.synth.codec.shapes.groups import Divided, Gathered, Swapped
from flint.tools.share.synth.codec.shapes.layout import Joined, Merged, Ones, Order, Part
from flint.tools.share.synth.codec.shapes.parts import Parts
from flint.tools.share.synth.codec.shapes.products import Dot
from flint.tools.share.synth.codec.shapes.reduced import Kept
from flint.tools.share.synth.codec.shapes.rule import ShapeRule
from flint.tools.share.synth.codec.shapes.same import Same, Scattered, Updated

#: Tried in this order on captured rows.
RULES: tuple[ShapeRule, ...] = (
    Updated(),
    Scattered(),
    Gathered(),
    Divided(),
    Swapped(),
    Order(),
    Ones(),
    Merged(),
    Part(),
    Joined(),
    Kept(),
    Dot(),
    Same(),
    Parts(),
)
RULE_NAMED: Mapping[str, ShapeRule] = {rule.name: rule for rule in RULES}

__all__ = ["RULES", "RULE_NAMED"]
