#!/usr/bin/env python3
"""Counts the exchanges per step of the legacy DataParallel and of DistributedDataParallel, both simulated with one
process (rank) for each device, and prints one JSON line.

    torchrun --nproc-per-node 2 exchanges.py

nn.DataParallel drives all devices from one process, which owns the parameters. Here that process is rank 0: each step
it scatters the batch, replicates the parameters, gathers the outputs, scatters the outputs' gradients and reduces the
parameters' gradients. DDP exchanges only gradients. Every exchange goes through one function that counts it; bytes are
those that rank 0 sends and receives. The script checks that both end with the same parameters.
"""

import argparse
import collections
import json
import time

import torch
import torch.distributed as dist
from torch.nn import functional

import gpt_torch


class Exchanges:
    """Counts and bytes of the exchanges, by kind."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.counts, self.bytes = collections.Counter(), collections.Counter()

    def note(self, kind, tensor, peers):
        self.counts[kind] += 1
        self.bytes[kind] += tensor.numel() * tensor.element_size() * peers

    def scatter(self, kind, whole, part):
        dist.scatter(part, list(whole.contiguous().chunk(self.world)) if self.rank == 0 else None)
        self.note(kind, part, self.world - 1)
        return part

    def gather(self, kind, part):
        parts = [torch.empty_like(part) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(part.contiguous(), parts)
        self.note(kind, part, self.world - 1)
        return torch.cat(parts) if self.rank == 0 else None

    def broadcast(self, kind, flat):
        dist.broadcast(flat, 0)
        self.note(kind, flat, self.world - 1)

    def reduce(self, kind, flat):
        dist.reduce(flat, 0)
        self.note(kind, flat, self.world - 1)

    def all_reduce(self, kind, flat):
        dist.all_reduce(flat)
        self.note(kind, flat, 2)  # sent once and received once, as in a ring of two


def logits_of(model, inputs):
    x = model.tokens(inputs) + model.positions.weight[: inputs.shape[1]]
    for layer in model.layers:
        x = layer(x)
    return functional.linear(model.norm(x), model.tokens.weight)


def flat_of(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def spread(flat, tensors):
    offset = 0
    for tensor in tensors:
        tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()


def legacy_step(model, optimizer, batch, exchanges):
    parameters = list(model.parameters())
    per_rank = len(batch[0]) // exchanges.world
    part = torch.empty((per_rank, 2, batch[0].shape[1]), dtype=torch.long)
    exchanges.scatter("scatter the batch", torch.stack(batch, 1), part)
    flat = flat_of([parameter.data for parameter in parameters])
    exchanges.broadcast("replicate the parameters", flat)
    spread(flat, [parameter.data for parameter in parameters])
    outputs = logits_of(model, part[:, 0])
    whole = exchanges.gather("gather the outputs", outputs.detach())
    gradient = torch.empty_like(outputs)
    if exchanges.rank == 0:  # the loss of all outputs, on one device
        whole.requires_grad_()
        functional.cross_entropy(whole.flatten(0, 1), batch[1].flatten()).backward()
    exchanges.scatter("scatter the outputs' gradients", whole.grad if exchanges.rank == 0 else None, gradient)
    outputs.backward(gradient)
    flat = flat_of([parameter.grad for parameter in parameters])
    exchanges.reduce("reduce the gradients", flat)
    if exchanges.rank == 0:
        spread(flat, [parameter.grad for parameter in parameters])
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def ddp_step(model, optimizer, batch, exchanges):
    parameters = list(model.parameters())
    mine = slice(exchanges.rank, None, exchanges.world)
    inputs, targets = (tensor[mine] for tensor in batch)
    functional.cross_entropy(logits_of(model, inputs).flatten(0, 1), targets.flatten()).backward()
    flat = flat_of([parameter.grad for parameter in parameters])
    exchanges.all_reduce("all-reduce the gradients", flat)
    spread(flat / exchanges.world, [parameter.grad for parameter in parameters])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def run(step, args, steps):
    torch.manual_seed(1337)
    model = gpt_torch.Gpt2(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    exchanges = Exchanges()
    batches = gpt_torch.Batches(args, 0)  # the same on every rank; a rank uses its part, or what rank 0 sends
    step(model, optimizer, batches.next(), exchanges)
    exchanges.counts.clear(), exchanges.bytes.clear()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step(model, optimizer, batches.next(), exchanges)
    dist.barrier()
    seconds = time.perf_counter() - began
    return flat_of([parameter.data for parameter in model.parameters()]), {
        "exchanges": {kind: count / steps for kind, count in exchanges.counts.items()},
        "rank0_bytes": {kind: count / steps for kind, count in exchanges.bytes.items()},
        "step_s": seconds / steps,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 6), ("heads", 6), ("width", 384), ("seq", 256), ("vocab", 256), ("batch", 16),
                        ("steps", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    args.data = None
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    legacy_parameters, legacy = run(legacy_step, args, args.steps)
    ddp_parameters, ddp = run(ddp_step, args, args.steps)
    if dist.get_rank() == 0:
        difference = (legacy_parameters - ddp_parameters).abs().max().item()
        assert difference < 1e-3, f"both kinds must end with the same parameters, but some differ by {difference}"
        print(json.dumps({"legacy": legacy, "ddp": ddp, "largest_difference": difference}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
