"""accelerate with FSDP: `accelerate_fsdp.py 1|2`."""

import sys

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from transformers import LlamaConfig, LlamaForCausalLM

version = int(sys.argv[1])
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=version,
    use_orig_params=True if version == 1 else None,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
config = LlamaConfig(
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=1000,
)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
rows = [
    {"input_ids": torch.randint(0, 1000, (128,)), "labels": torch.randint(0, 1000, (128,))}
    for _ in range(256)
]
loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    loss = model(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(loss.item())
