"""Write the programs that come with `flint synth`, of captures of public models.

    python -m benchmarks.sharing.remembered EXAMPLES

EXAMPLES is the folder that `known_examples.py` wrote.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from flint.ir.workload import Workload
from flint.tools.share.synth import remembered
from flint.tools.share.synth.synthesize import learn

#: Programs that differ in more than sizes: dense and sparse decoders, encoders, serving, long sequences, stages.
CAPTURES = (
    "llama_jax.py_64x8_parallel_fsdp_tp_Llama-3-8B",
    "llama_jax.py_64x8_parallel_fsdp_tp_sp_Llama-3-8B",
    "llama_jax.py_32x8_parallel_fsdp_Llama-3-70B",
    "llama_jax.py_32x8_remat_none_Llama-3-70B",
    "decode_jax.py_16x4__Llama-3-8B",
    "decode_jax.py_8x8_cache_int8_Llama-3-8B",
    "mixtral_jax.py_64x8_dispatch_alltoall_Mixtral-8x7B",
    "mixtral_jax.py_8x8_dispatch_einsum_Mixtral-8x7B",
    "encoders_jax.py_bert_8x4_training_true_BERT-base",
    "encoders_jax.py_bert_8x1_training_false_BERT-large",
    "encoders_jax.py_t5_32x2_training_true_T5-large",
    "encoders_jax.py_t5_8x4_training_false_T5-base",
    "encoders_jax.py_vit_8x4_training_true_ViT-B_16",
    "encoders_jax.py_vit_8x4_training_false_ViT-B_16",
    "ring_attention_jax.py_4x16__ring-attention-4096",
    "spmd_pipeline_jax.py_4x8__spmd-pipeline-2560",
)


def main() -> None:
    """Replace the folder of programs."""
    folder = Path(remembered.__file__).parent / remembered.DEFAULT
    found = learn(Workload.load(Path(sys.argv[1]) / f"{name}.flint") for name in CAPTURES)
    shutil.rmtree(folder, ignore_errors=True)
    found.save(folder)
    print(f"{len(found.workloads)} programs in {folder}")


if __name__ == "__main__":
    main()
