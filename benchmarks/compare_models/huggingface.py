"""The HuggingFace models of benchmarks/data/kineto, from configuration, with the sizes of the traces.

    flint capture benchmarks/compare_models/huggingface.py --mesh 1 --world --steps 0 \\
        -o bert.flint -- --model bert-small

Needs `pip install transformers==4.53.3`. No weights are read. Configurations are those of the
`config.json` files that are published with the weights; lengths are those of the recorded operators.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, Qwen2Config, Qwen2Model, ViTConfig, ViTModel


def bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """gaunernst/bert-small-uncased, one text of 141 tokens."""
    config = BertConfig(
        hidden_size=512, intermediate_size=2048, num_attention_heads=8, num_hidden_layers=4
    )
    return BertForMaskedLM(config), tokens(1, 141)


def qwen() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Qwen/Qwen1.5-0.5B-Chat without its head, 16 texts of 559 tokens."""
    config = Qwen2Config(
        vocab_size=151_936, hidden_size=1024, intermediate_size=2816, num_hidden_layers=24,
        num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=32_768,
        rope_theta=1_000_000.0, use_cache=False,
    )  # fmt: skip
    return Qwen2Model(config), tokens(16, 559)


def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Falconsai/nsfw_image_detection without its classifier, 4 images."""
    images = torch.zeros((4, 3, 224, 224), device="cuda")
    return ViTModel(ViTConfig()), {"pixel_values": images}


def tokens(texts: int, length: int) -> dict[str, torch.Tensor]:
    """What a tokenizer gives for texts of one length."""
    ids = torch.zeros((texts, length), dtype=torch.int64, device="cuda")
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


MODELS = {"bert-small": bert, "qwen1.5-0.5b": qwen, "vit": vit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="bert-small")
    name = parser.parse_args().model
    torch.set_default_dtype(torch.bfloat16)  # as from_pretrained(torch_dtype=...) does
    with torch.device("cuda"):
        model, inputs = MODELS[name]()
    model.eval()
    with torch.no_grad():
        model(**inputs)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
