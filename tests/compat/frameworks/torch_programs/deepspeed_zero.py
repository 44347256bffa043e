"""DeepSpeed: `deepspeed_zero.py 1|2|3`; stage 1 in fp16 with loss scaling."""

import contextlib
import sys

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

stage = int(sys.argv[1])
deepspeed.init_distributed()
settings = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": stage > 1},
    "fp16": {"enabled": stage == 1},
    "zero_optimization": {"stage": stage},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
    "gradient_clipping": 1.0,
}
init = deepspeed.zero.Init(config_dict_or_path=settings) if stage == 3 else contextlib.nullcontext()
config = LlamaConfig(
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=1000,
)
with init:
    model = LlamaForCausalLM(config)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for _ in range(4):
    ids = torch.randint(0, 1000, (4, 128)).to(engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    print(loss.item())
