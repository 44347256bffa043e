"""How long collectives and messages take on the tiers of a cluster."""

from flint.backends.cost.collectives.choose import algorithm, duration_ns, roofline_ns

__all__ = ["algorithm", "duration_ns", "roofline_ns"]
