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


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Opcodes that Flint and its readers make themselves.
FLINT_OPCODES: frozenset[str] = _words(
    """
    parameter kernel stack
    func.argument torch.argument while.carry while.yield case.join flint.identity
    implied.all_gather implied.all_reduce implied.collective_permute
    pipeline.accumulator pipeline.all_reduce pipeline.neighbour pipeline.recv
    pipeline.saved pipeline.send pipeline.stash pipeline.sum pipeline.turn pool.recv pool.send
    host.argument host.callback host.gap host.launch host.load host.store host.view host.wait
    fusion fusion.loop fusion.layout fusion.attention fusion.attention_backward
    fusion.softmax fusion.norm fusion.reduction fusion.optimizer
    custom_call.pallas_attention custom_call.pallas_attention_backward
    custom_call.__cudnn$fmhaSoftmax custom_call.__cudnn$fmhaSoftmaxBackward
    custom_call.flint.attention custom_call.flint.attention_backward
    """
)
#: What may follow an opcode: the mask of attention, how a collective combines, parts of a kernel.
_SUFFIX = re.compile(
    r"\[(?:causal|window\?|window=\d{1,9}|max|maximum|min|minimum|mul|multiply|prod|product|select|avg|and|or|xor"
    r"|band|bor|bxor|premul_sum|\d{1,9} of \d{1,9} blocks)\]$"
)
#: What `op_word` begins with.
_CLASS_PREFIX = "op."
_CLASS_WORDS = frozenset(_CLASS_PREFIX + c.name.lower() for c in OpClass)
#: Element types as StableHLO, HLO, numpy and PyTorch write them.
DTYPES: frozenset[str] = _words(
    """
    bool pred i1 token s2 s4 s8 s16 s32 s64 u2 u4 u8 u16 u32 u64 i2 i4 i8 i16 i32 i64
    ui2 ui4 ui8 ui16 ui32 ui64 si8 si16 si32 si64 f16 bf16 f32 tf32 f64 c64 c128
    int2 int4 int8 int16 int32 int64 uint2 uint4 uint8 uint16 uint32 uint64
    float16 bfloat16 float32 float64 complex64 complex128 key<fry> float0
    f4e2m1fn f6e2m3fn f6e3m2fn f8e3m4 f8e4m3 f8e4m3fn f8e4m3fnuz f8e4m3b11fnuz f8e5m2 f8e5m2fnuz
    f8e8m0fnu float4_e2m1fn float4_e2m1fn_x2 float6_e2m3fn float6_e3m2fn float8_e3m4 float8_e4m3
    float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
    complex<f32> complex<f64> half float double
    """
)
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
METADATA_KEYS: frozenset[str] = _words(
    """
    producer partitioner name source granularity profile sharing level keep warnings torch
    pipeline axis schedule microbatches chunks positions stage label in_flight
    saved_bytes_per_microbatch pools prefill decode
    compiler chip version topology memory argument_bytes output_bytes alias_bytes temp_bytes
    code_bytes measured format device classes rank span_ns period_ns steps peak_bytes
    stood_in packages stack shares
    """
)
#: Values of metadata that say how Flint made the workload, and public hardware's short names.
METADATA_VALUES: frozenset[str] = _words(
    """
    flint none shardy xla op kernel names shapes structure
    gpipe 1f1b interleaved-1f1b zb-h1 zb-v dualpipev forward
    xla-gpu xla-tpu xla-cpu xla-gpu-cycles xla-tpu-cycles recorded
    kineto xplane nsight chakra profile megatron composer torchtitan deepspeed
    a100 a100-40 a100-80 b200 b300 gb200 gb300 h100 h200 l40s mi300x mi325x mi350x mi355x trn2 v4 v5e v5p v6e v7
    """
)
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
    text = (files("flint.tools.share.leaks") / "operators.txt").read_text(encoding="utf-8")
    found: set[str] = set()
    space = ""
    for line in text.splitlines():
        if line.startswith("["):
            space = line.strip("[]")
        else:
            found.update(f"{space}.{name}" for name in line.split())
    return frozenset(found)


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
