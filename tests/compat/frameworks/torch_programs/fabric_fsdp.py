"""Lightning Fabric with FSDP."""

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

strategy = FSDPStrategy(auto_wrap_policy={LlamaDecoderLayer})
fabric = Fabric(accelerator="cuda", devices=8, strategy=strategy, precision="bf16-mixed")
fabric.launch()
config = LlamaConfig(
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=1000,
)
model = fabric.setup_module(LlamaForCausalLM(config))
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-4))
for _ in range(4):
    ids = torch.randint(0, 1000, (4, 128), device=fabric.device)
    loss = model(input_ids=ids, labels=ids).loss
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    fabric.print(f"{loss:.3f}")
