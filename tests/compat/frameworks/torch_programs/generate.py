"""`from_pretrained` of a folder, and `generate`: `generate.py FOLDER dynamic|static`."""

import sys

import torch
from transformers import LlamaForCausalLM

model = LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, device_map="cuda")
cache = "static" if sys.argv[2] == "static" else None
ids = torch.randint(0, 1000, (2, 16), device="cuda")
made = model.generate(ids, max_new_tokens=8, do_sample=False, cache_implementation=cache)
assert made.shape == (2, 24)
