"""Libraries: whose code a chip or a network runs. Constants of either may be of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from flint.cluster.tables import unknown, wrong
from flint.errors import nearest

#: The library of rates that chips keep for minutes.
SUSTAINED = "sustained"
#: Names that [chip.gpu.libraries.NAME], [network.libraries.NAME] and a stack's `libraries` may have, and what they mean.
LIBRARIES: Mapping[str, str] = {
    SUSTAINED: "rates of steps that run for minutes: the clock that the chip's power allows",
    "aten": "PyTorch's own kernels, as it launches them operator by operator",
    "triton": "kernels that Inductor or XLA generates: fused chains, softmax, norms, reductions",
    "cudnn": "cuDNN: attention, convolutions",
    "flash-2": "FlashAttention-2",
    "flash-3": "FlashAttention-3",
    "flash-4": "FlashAttention-4, for Blackwell",
    "triton-flash": "FlashAttention of 2023 in Triton",
    "transformer-engine": "Transformer Engine and Apex: fused norms, softmax, optimizers",
    "moe-triton": "SGLang's and vLLM's fused experts in Triton",
    "moe-cutlass": "FlashInfer's fused experts with CUTLASS",
    "moe-trtllm": "TensorRT-LLM's fused experts",
    "serving": "kernels of serving engines (TensorRT-LLM, SGLang, vLLM)",
    "nccl-2-29": "NCCL 2.27 to 2.29: constants of networks unless they say otherwise",
    "nccl-2-20": "NCCL 2.18 to 2.20: small collectives start later",
}


def _known(name: str) -> str:
    if name not in LIBRARIES:
        said = f"'{name}' is not a known library{nearest(name, list(LIBRARIES))}"
        raise wrong(said, help=f"one of {', '.join(LIBRARIES)}")
    return name


def _known_names(tables: Any) -> Any:
    for name in tables if isinstance(tables, dict) else ():
        if name not in LIBRARIES:
            raise unknown(name, list(LIBRARIES), tables[name])
    return tables


Library = Annotated[str, AfterValidator(_known)]
#: One that need not be said.
MaybeLibrary = Annotated[str, AfterValidator(lambda name: name and _known(name))]
#: Of tables by the name of a library.
KnownLibraries = BeforeValidator(_known_names)
