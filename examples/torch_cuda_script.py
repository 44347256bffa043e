"""A torchrun script as people write them for CUDA: nothing in it knows of Flint, or of CPUs.

    flint capture examples/torch_cuda_script.py --mesh 4096 --world -o trace
    torchrun --nproc-per-node 8 examples/torch_cuda_script.py

A small GPT trained with DistributedDataParallel, mixed precision with a gradient scaler, a compiled
model, a DataLoader with pinned memory, gradient clipping, timing with CUDA events and a log line
that reads the loss back. It runs on GPUs only.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class RandomText(Dataset):
    """Sequences of random tokens and the tokens that follow."""

    def __init__(self, length: int, seq: int, vocab: int):
        self.length, self.seq, self.vocab = length, seq, vocab

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocab, (self.seq + 1,), generator=generator)
        return tokens[:-1], tokens[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, seq, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, seq, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))


class GPT(nn.Module):
    def __init__(self, vocab: int, seq: int, width: int, heads: int, depth: int, dropout: float):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=50_304)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--log-every", type=int, default=1)
    args = parser.parse_args()

    dist.init_process_group(backend="nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.manual_seed(1337 + dist.get_rank())
    torch.backends.cuda.matmul.allow_tf32 = True
    print(f"rank {dist.get_rank()} on {torch.cuda.get_device_name(local_rank)}")

    model = GPT(args.vocab, args.seq, args.width, args.heads, args.depth, dropout=0.1).cuda()
    model.compile()
    model = DDP(model, device_ids=[local_rank], output_device=local_rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    data = RandomText(args.batch * dist.get_world_size() * args.steps, args.seq, args.vocab)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=2, pin_memory=True)

    started, before, after = time.time(), torch.cuda.Event(True), torch.cuda.Event(True)
    for step, (tokens, targets) in enumerate(loader):
        tokens = tokens.cuda(non_blocking=True)
        targets = targets.to(f"cuda:{local_rank}", non_blocking=True)
        before.record()
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(tokens)
            loss = F.cross_entropy(logits.view(-1, args.vocab), targets.view(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        after.record()
        if step % args.log_every == 0:
            torch.cuda.synchronize()
            dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(
                    f"step {step}: loss {loss.item():.4f}, norm {norm.item():.2f}, "
                    f"{before.elapsed_time(after):.0f} ms, "
                    f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, "
                    f"{time.time() - started:.0f} s"
                )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
