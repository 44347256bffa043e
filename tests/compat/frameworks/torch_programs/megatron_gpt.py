"""A training loop of Megatron-core, as its documentation has it, on Transformer Engine's layers."""

import argparse
import os

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
for name, default in {"tp": 2, "pp": 2, "vp": 0, "ep": 1, "experts": 0}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
options = parser.parse_args()
SEQUENCE, MICROBATCHES = 256, 4

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group(backend="nccl")
parallel_state.initialize_model_parallel(
    options.tp,
    options.pp,
    virtual_pipeline_model_parallel_size=options.vp or None,
    expert_model_parallel_size=options.ep,
)
model_parallel_cuda_manual_seed(123)
experts = {
    "num_moe_experts": options.experts,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_router_topk": 2,
}
config = TransformerConfig(
    num_layers=4,
    hidden_size=512,
    num_attention_heads=8,
    num_query_groups=4,
    ffn_hidden_size=2048,
    pipeline_dtype=torch.bfloat16,
    params_dtype=torch.bfloat16,
    bf16=True,
    tensor_model_parallel_size=options.tp,
    pipeline_model_parallel_size=options.pp,
    virtual_pipeline_model_parallel_size=options.vp or None,
    expert_model_parallel_size=options.ep,
    sequence_parallel=True,
    normalization="RMSNorm",
    gated_linear_unit=True,
    add_bias_linear=False,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    **(experts if options.experts else {}),
)
spec = get_gpt_layer_with_transformer_engine_spec(options.experts or None, bool(options.experts))


def stage(virtual=None):
    virtually = {"ignore_virtual": False, "vp_stage": virtual} if options.vp else {}
    model = GPTModel(
        config,
        spec,
        vocab_size=32000,
        max_sequence_length=SEQUENCE,
        position_embedding_type="rope",
        pre_process=parallel_state.is_pipeline_first_stage(**virtually),
        post_process=parallel_state.is_pipeline_last_stage(**virtually),
        vp_stage=virtual,
    )
    reduction = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=True, grad_reduce_in_fp32=True
    )
    return DistributedDataParallel(config, reduction, model.cuda())


models = [stage(index) for index in range(options.vp)] if options.vp else [stage()]
for model in models:
    model.config.finalize_model_grads_func = finalize_model_grads
optimizer = get_megatron_optimizer(
    OptimizerConfig(
        optimizer="adam",
        lr=1e-4,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=True,
        clip_grad=1.0,
    ),
    models,
)


def batches():
    while True:
        tokens = torch.randint(0, 32000, (1, SEQUENCE + 1), device="cuda")
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def forward(batch, model):
    tokens, labels = next(batch)
    positions = torch.arange(SEQUENCE, device="cuda").unsqueeze(0)
    output = model(tokens, positions, None, labels=labels)

    def loss(output):
        mean = output.float().mean()
        return mean, {"loss": mean.detach()}

    return output, loss


iterators = [batches() for _ in models]
for step in range(3):
    for model in models:
        model.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iterators if options.vp else iterators[0],
        model=models if options.vp else models[0],
        num_microbatches=MICROBATCHES,
        seq_length=SEQUENCE,
        micro_batch_size=1,
        forward_only=False,
    )
    print(step, *optimizer.step())
