"""Libraries of kernels: whose code a chip runs. Constants of a chip may be of one of them."""

from __future__ import annotations

from collections.abc import Mapping

#: The library of rates that chips keep for minutes.
SUSTAINED = "sustained"
#: Names that [chip.gpu.libraries.NAME] and a stack's `libraries` may have, and what they mean.
LIBRARIES: Mapping[str, str] = {
    SUSTAINED: "rates of steps that run for minutes: the clock that the chip's power allows",
    "aten": "PyTorch's own kernels, as it launches them operator by operator",
    "triton": "kernels that Inductor or XLA writes: fused chains, softmax, norms, reductions",
    "cudnn": "cuDNN: attention, convolutions",
    "flash-2": "FlashAttention-2",
    "flash-3": "FlashAttention-3",
    "flash-4": "FlashAttention-4, of Blackwell",
    "triton-flash": "FlashAttention of 2023 in Triton",
    "transformer-engine": "Transformer Engine and Apex: fused norms, softmax, optimizers",
    "moe-triton": "SGLang's and vLLM's fused experts in Triton",
    "moe-cutlass": "FlashInfer's fused experts with CUTLASS",
    "moe-trtllm": "TensorRT-LLM's fused experts",
    "serving": "kernels of serving engines (TensorRT-LLM, SGLang, vLLM)",
}
