"""Words that identify nobody: what public compilers and frameworks say, and Flint's own.

What is not here counts as a survivor (`strings.py`), whatever it looks like: a rule that guesses
what is harmless would let names through. Anonymizing writes words of this module only.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from flint.cluster.devices import public_devices
from flint.ir.op_class import OpClass


def _sections(name: str) -> dict[str, frozenset[str]]:
    """Words of a file by the section that they are in: `[name]`, and lines of words."""
    found: dict[str, list[str]] = {}
    words: list[str] = []
    for line in (files("flint.tools.share.leaks") / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            words = found.setdefault(line.strip("[]"), [])
        else:
            words += line.split()
    return {section: frozenset(words) for section, words in found.items()}


#: Public words by what they are: `words.txt`.
WORDS = _sections("words.txt")
#: Opcodes that Flint and its readers make themselves.
FLINT_OPCODES = WORDS["opcodes"]
#: What may follow an opcode: the mask of attention, how a collective combines, parts of a kernel.
_SUFFIX = re.compile(
    r"\[(?:causal|window\?|window=\d{1,9}|max|maximum|min|minimum|mul|multiply|prod|product|select|avg|and|or|xor"
    r"|band|bor|bxor|premul_sum|\d{1,9} of \d{1,9} blocks)\]$"
)
#: What `op_word` begins with.
_CLASS_PREFIX = "op."
_CLASS_WORDS = frozenset(_CLASS_PREFIX + c.name.lower() for c in OpClass)
#: Element types as StableHLO, HLO, numpy and PyTorch write them.
DTYPES = WORDS["types"]
#: How operands are multiplied, behind the type in `Program.products`.
_PRODUCT_PART = re.compile(r"high|highest|ieee|tf32|block|(groups|sums)?\d{1,9}")
#: Words of generated names: a word and a number (`axis0`), and nothing else.
NEUTRAL_WORDS: tuple[str, ...] = (
    *("axis", "class", "stream", "region", "group", "stage", "program", "rank"),
    *("argument", "parameter", "value", "scope", "kernel", "workload", "file"),
)
_NEUTRAL = re.compile(rf"(?:{'|'.join(NEUTRAL_WORDS)})[ _]?\d{{1,9}}(?: \(\d{{1,4}}\))?")
#: Streams, classes and regions that Flint names the same in every workload.
_FIXED_NAMES = re.compile(
    r"all|workload|(?:compute|counters|host|to host|from host)(?: \(\d{1,4}\))?"
)
#: Scopes and arguments as the level `names` writes them: numbers of layers, kernels and families.
_NEUTRAL_PART = r"(?:scope\d{1,9}|kernel\.\d{1,9}_?)"
_NEUTRAL_PATH = re.compile(rf"{_NEUTRAL_PART}(?:/{_NEUTRAL_PART})?|argument\d{{1,9}}\[\d{{1,9}}\]")
#: Keys of a workload's metadata, at any depth.
METADATA_KEYS = WORDS["keys"]
#: Values of metadata that say how Flint made the workload, and public hardware's short names.
METADATA_VALUES = WORDS["values"]
#: A number, a version or a topology: digits and what stands between them.
_NUMBERS = re.compile(r"[\d.x,+-]{0,40}")


def op_word(op: OpClass) -> str:
    """The neutral opcode of a class: `op.matmul`."""
    return _CLASS_PREFIX + op.name.lower()


@cache
def public_operators() -> frozenset[str]:
    """Names (`stablehlo.add`, `aten.mm`) that jaxlib, XLA and PyTorch declare.

    Read once from `operators.txt`, which `benchmarks/sharing/public_operators.py` writes.
    """
    spaces = _sections("operators.txt").items()
    return frozenset(f"{space}.{name}" for space, names in spaces for name in names)


def is_public_opcode(text: str) -> bool:
    """Whether an opcode is an operator of the public vocabulary, Flint's own, or an op class."""
    name = _SUFFIX.sub("", text)
    return name in FLINT_OPCODES or name in _CLASS_WORDS or name in public_operators()


def is_public_dtype(text: str) -> bool:
    """Whether it is a public element type, or none."""
    return not text or text in DTYPES


def is_public_product(text: str) -> bool:
    """Whether it is a type of `flint.ir.product_types`: `f32:highest`, `bf16:groups8`."""
    dtype, _, how = text.partition(":")
    parts = how.split(",") if how else []
    return is_public_dtype(dtype) and all(map(_PRODUCT_PART.fullmatch, parts))


def is_neutral_name(text: str) -> bool:
    """Whether it is empty, a generated word (`axis0`, `stream 3`), or the same in all workloads."""
    forms = (_NEUTRAL, _FIXED_NAMES, _NEUTRAL_PATH)
    return not text or any(form.fullmatch(text) for form in forms)


def is_public_key(text: str) -> bool:
    """Whether it is a key of metadata that Flint itself writes, or a generated word."""
    return text in METADATA_KEYS or is_neutral_name(text)


def is_public_value(text: str) -> bool:
    """Whether a text in metadata says only how Flint made the workload, or is a number."""
    known = text in METADATA_VALUES or text in public_devices()
    return known or is_neutral_name(text) or bool(_NUMBERS.fullmatch(text))
