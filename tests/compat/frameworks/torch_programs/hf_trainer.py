"""HuggingFace's Trainer: `hf_trainer.py ddp|fsdp2|zero3 OUTPUT`."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (128,))
        return {"input_ids": ids, "labels": ids}


HOW = {
    "ddp": {"gradient_checkpointing": True, "save_steps": 2},
    "fsdp2": {
        "fsdp": "full_shard",
        "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
        "save_strategy": "no",
    },
    "zero3": {
        "deepspeed": {
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3},
        },
        "save_strategy": "no",
    },
}
config = LlamaConfig(
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=1000,
)
arguments = TrainingArguments(
    sys.argv[2],
    per_device_train_batch_size=4,
    bf16=True,
    max_steps=4,
    report_to=[],
    logging_steps=1,
    **HOW[sys.argv[1]],
)
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Tokens()).train()
