#!/usr/bin/env python3
"""PyTorch's side of several benchmarks: the GPT-2 model that Trainyard trains there, built from PyTorch's own modules.
Prints one JSON line.

    gpt_torch.py --mode eager|compile                             one process
    torchrun --nproc-per-node 2 gpt_torch.py --mode ddp           two processes with DistributedDataParallel
    torchrun --nproc-per-node 2 gpt_torch.py --mode zero1         like ddp; each process has half of the optimizer state
    torchrun --nproc-per-node 2 gpt_torch.py --mode fsdp2         two processes, sharded by fully_shard

`--batch` is per rank, as PyTorch users write it. `tok_s` is the speed of all ranks together, in tokens per second, in
the measured steps, which follow the warm-up. `first_step_unix` is the Unix time at the end of the first step, from
which the caller subtracts the time at which it started the command. `first_step_s` counts from the start of this
script.
"""

import time

STARTED = time.perf_counter()

import argparse
import json
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["eager", "compile", "ddp", "zero1", "fsdp2"], default="eager")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--seq", type=int, default=256, help="tokens in a sequence")
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--steps", type=int, default=12, help="measured steps")
    parser.add_argument("--warmup", type=int, default=3, help="warm-up steps")
    parser.add_argument("--threads", type=int, default=0, help="0: as PyTorch chooses")
    parser.add_argument("--bf16", action="store_true", help="autocast to bf16")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu",
                        help="cuda works in modes eager and compile")
    parser.add_argument("--data", help="file whose bytes are the tokens; default: random tokens")
    parser.add_argument("--losses", action="store_true", help="also print rank 0's loss of every step")
    return parser.parse_args()


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        per_head = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = per_head.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt2(nn.Module):
    """Pre-layer-norm GPT-2 with learned positions and the head tied to the token embedding; no dropout."""

    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.vocab, args.width)
        self.positions = nn.Embedding(args.seq, args.width)
        self.layers = nn.ModuleList([Layer(args.width, args.heads) for _ in range(args.layers)])
        self.norm = nn.LayerNorm(args.width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def distribute(model, mode, world):
    """Returns the module to call in a step; it trains the parameters of `model`."""
    if mode == "compile":
        return torch.compile(model)
    if mode in ("ddp", "zero1"):
        return nn.parallel.DistributedDataParallel(model)
    if mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def make_optimizer(model, mode):
    settings = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if mode == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, **settings)
    return torch.optim.AdamW(model.parameters(), **settings)


class Batches:
    """Random windows of one text, different ones on every rank."""

    def __init__(self, args, rank):
        if args.data:
            with open(args.data, "rb") as file:
                self.text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
        else:
            self.text = torch.randint(args.vocab, (200_000,))
        self.count, self.length = args.batch, args.seq
        self.random = torch.Generator().manual_seed(1000 + rank)

    def next(self):
        starts = torch.randint(len(self.text) - self.length - 1, (self.count,), generator=self.random)
        windows = torch.stack([self.text[start : start + self.length + 1] for start in starts.tolist()])
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def main():
    args = parse_arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1337)
    rank, world = 0, 1
    if args.mode in ("ddp", "zero1", "fsdp2"):
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()

    model = Gpt2(args).to(args.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trained = distribute(model, args.mode, world)
    optimizer = make_optimizer(model, args.mode)
    batches = Batches(args, rank)

    def step():
        inputs, targets = (tensor.to(args.device) for tensor in batches.next())
        with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
            loss = trained(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    losses = [step()]
    losses[0].item()
    first_unix, first_s = time.time(), time.perf_counter() - STARTED
    losses += [step() for _ in range(args.warmup - 1)]
    losses[-1].item()
    if world > 1:
        dist.barrier()
    begin = time.perf_counter()
    losses += [step() for _ in range(args.steps)]
    losses[-1].item()
    if world > 1:
        dist.barrier()
    seconds = time.perf_counter() - begin

    if rank == 0:
        tokens_per_s = args.steps * args.batch * args.seq * world / seconds
        flops_per_token = 6 * parameters + 12 * args.layers * args.width * args.seq
        line = dict(mode=args.mode, params=parameters, world=world, threads=torch.get_num_threads(), bf16=args.bf16,
                    tok_s=round(tokens_per_s, 1), gflops=round(tokens_per_s * flops_per_token / 1e9, 1),
                    step_ms=round(1e3 * seconds / args.steps, 3), first_step_s=round(first_s, 3),
                    first_step_unix=first_unix,
                    last_loss=round(losses[-1].item(), 4))
        if args.losses:
            line["losses"] = [loss.item() for loss in losses]
        assert math.isfinite(line["last_loss"]), "the loss is not finite: the measurement is invalid"
        print(json.dumps(line), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
