"""Write the names of public operators that a shared workload may hold.

    python benchmarks/sharing/public_operators.py

They are what the installed jaxlib and PyTorch declare (StableHLO, CHLO, Shardy, functions; every
schema of PyTorch's registry) and HLO's opcodes. No other package may be imported before: operators
that somebody registers would count as public.
"""

from __future__ import annotations

import importlib
import itertools
import textwrap
from collections import defaultdict
from pathlib import Path

#: Where the package reads them.
TARGET = Path(__file__).parents[2] / "flint/tools/share/leaks/operators.txt"
#: Dialects of MLIR that jaxlib has.
DIALECTS = ("stablehlo", "chlo", "sdy", "func")
#: HLO's opcodes (xla/hlo/ir/hlo_opcode.h) and the categories that XLA's profiler adds.
HLO = """abs acos acosh add add-dependency after-all all-gather all-gather-done all-gather-start
all-reduce all-reduce-done all-reduce-start all-to-all and asin asinh async-done async-start
async-update atan2 atanh batch-norm-grad batch-norm-inference batch-norm-training bitcast
bitcast-convert broadcast call carried cbrt ceil cholesky clamp collective-broadcast
collective-permute collective-permute-done collective-permute-start compare complex concatenate
conditional constant convert convolution convolution-fusion copy copy-done copy-start cos cosh cosine
count-leading-zeros custom-call custom-fusion data-formatting divide domain dot dynamic-reshape
dynamic-slice dynamic-update-slice erf exponential exponential-minus-one fft floor fusion gather
get-dimension-size get-tuple-element imag infeed input-fusion iota is-finite log log-plus-one
logistic loop-fusion map maximum minimum multiply negate non-fusion-elementwise not
opt-barrier optimization-barrier or outfeed output-fusion pad parameter partition-id popcnt
popcount power ragged-all-to-all ragged-dot real recv recv-done reduce reduce-precision reduce-scatter
reduce-window remainder replica-id reshape result reverse rng rng-bit-generator
rng-get-and-update-state round-nearest-afz round-nearest-even rsqrt scaled-dot scan scatter
scatter-add select select-and-scatter send send-done set-dimension-size shift-left
shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt stochastic-convert
subtract tan tanh top-k topk transpose triangular-solve tuple unreduced while xor"""


def of_jaxlib() -> dict[str, set[str]]:
    """For each dialect its operations."""
    found: dict[str, set[str]] = defaultdict(set)
    for dialect in DIALECTS:
        module = importlib.import_module(f"jaxlib.mlir.dialects._{dialect}_ops_gen")
        classes = [c for c in vars(module).values() if hasattr(c, "OPERATION_NAME")]
        found[dialect] |= {str(c.OPERATION_NAME).partition(".")[2] for c in classes}
    return found


def of_torch() -> dict[str, set[str]]:
    """For each namespace of PyTorch's registry its operators, without overloads."""
    torch = importlib.import_module("torch")
    importlib.import_module("torch.distributed._functional_collectives")
    importlib.import_module("torch.distributed._composable.fsdp")
    found: dict[str, set[str]] = defaultdict(set)
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        found[space].add(name)
    return found


def main() -> None:
    """Write the file: for each namespace a line with its name, then its operators."""
    spaces = {**of_jaxlib(), **of_torch(), "hlo": set(HLO.split())}
    lines = [
        (f"[{space}]", *textwrap.wrap(" ".join(sorted(names)), 100, break_on_hyphens=False))
        for space, names in sorted(spaces.items())
        if not space.startswith(("_test", "onnx", "debug"))
    ]
    TARGET.write_text("\n".join(itertools.chain.from_iterable(lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
