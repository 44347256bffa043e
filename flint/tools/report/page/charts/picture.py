"""What every chart is: a picture with a name for those who do not see it."""

from __future__ import annotations

from flint.tools.report.page.markup import Markup, tag


def picture(label: str, height: object, *inside: object) -> Markup:
    """A picture as wide as its place, `height` pixels high; `label` says what it shows."""
    return tag(
        "svg",
        tag("title", label),
        *inside,
        cls="chart",
        role="img",
        aria_label=label,
        width="100%",
        height=height,
    )
