"""Strict rules of captured programs, beyond what `Program.verify` proves of any program.

`verify` says what passes may rely on. These rules say what every program that was captured keeps:
sizes fit to operands, bytes to types, payloads to groups, and nothing is computed for nothing.
What a generator makes is held against them.
"""

from flint.tools.share.rules.check import ALL_RULES, broken_rules, is_valid
from flint.tools.share.rules.view import BrokenRule, Rule

__all__ = ["ALL_RULES", "BrokenRule", "Rule", "broken_rules", "is_valid"]
