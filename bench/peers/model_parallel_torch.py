#!/usr/bin/env python3
"""PyTorch's side of the comparison of model parallelism: the GPT-2 model of gpt_torch.py, divided among processes by
torch.distributed.tensor.parallel or torch.distributed.pipelining; prints one JSON line.

    model_parallel_torch.py --mode one                                  one process with the whole model
    torchrun --nproc-per-node 2 model_parallel_torch.py --mode tensor   each process has a part of each layer
    torchrun --nproc-per-node 2 model_parallel_torch.py --mode 1f1b     two stages and Schedule1F1B; or --mode gpipe

`--batch` is the number of sequences in a step; all processes work on the same ones. Every mode begins with the weights
of mode `one` and reads the same batches, so the losses of all modes are equal up to rounding.

This script applies the optimizations that a user would apply. Tensor parallelism has the four all-reduces per layer
that it needs and no others: it keeps activations outside of the products as ordinary tensors, and the embeddings and
the head whole, because a vocabulary of bytes is too small for a division to pay off. The optimizer and the
clipping of gradients work on the local parts, because the overhead of an operation on a DTensor is larger than such
small operations themselves.
"""

import time

# Before the other imports, because first_step_s includes their time, as in gpt_torch.py.
STARTED = time.perf_counter()

import argparse
import dataclasses
import json
import math

import gpt_torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

CLIP_NORM = 1.0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["one", "tensor", "1f1b", "gpipe"], default="one")
    for name, value, what in (("layers", 6, ""), ("heads", 6, ""), ("width", 384, ""),
                              ("seq", 256, "tokens in a sequence"), ("vocab", 256, ""),
                              ("batch", 16, "sequences in a step"),
                              ("micro-batches", 8, "micro-batches in a step; every mode makes one pass for each"),
                              ("steps", 12, "measured steps"), ("warmup", 3, "warm-up steps"),
                              ("threads", 1, "threads of each process")):
        parser.add_argument(f"--{name}", type=int, default=value, help=what)
    parser.add_argument("--data", help="file whose bytes are the tokens; default: random tokens")
    parser.add_argument("--losses", action="store_true", help="also print the loss of every step")
    args = parser.parse_args()
    if args.batch % args.micro_batches != 0:
        parser.error(f"--batch {args.batch} is not a multiple of --micro-batches {args.micro_batches}")
    return args


class HeadMajorAttention(gpt_torch.Attention):
    """The same attention with the outputs of qkv ordered by head, so that each slice of them belongs to whole heads."""

    def __init__(self, other, heads):
        width = other.proj.in_features
        super().__init__(width, heads)
        self.size = width // heads
        with torch.no_grad():
            for mine, theirs in zip(self.qkv.parameters(), other.qkv.parameters()):
                by_head = theirs.view(3, heads, self.size, -1).transpose(0, 1)
                mine.copy_(by_head.reshape(mine.shape))
            self.proj.load_state_dict(other.proj.state_dict())

    def forward(self, x):
        batch, length, _ = x.shape
        query, key, value = self.qkv(x).view(batch, length, -1, 3, self.size).permute(3, 0, 2, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Stage(nn.Module):
    """Consecutive layers of a model. The last stage has a copy of the embedding as its head."""

    def __init__(self, model, rank, stages):
        super().__init__()
        each, more = divmod(len(model.layers), stages)
        begin = rank * each + min(rank, more)
        self.layers = model.layers[begin : begin + each + (rank < more)]
        self.tokens = model.tokens if rank in (0, stages - 1) else None
        self.positions = model.positions if rank == 0 else None
        self.norm = model.norm if rank == stages - 1 else None

    def forward(self, x):
        if self.positions is not None:
            x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return x if self.norm is None else functional.linear(self.norm(x), self.tokens.weight)


def loss_of(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@dataclasses.dataclass
class Trained:
    """What a step needs in each mode. `once` and `parts` are the leaves whose squares count in the norm."""

    run: object   # (inputs, targets) -> the loss, on a process that has it, with all gradients accumulated
    leaves: list  # the tensors that this process updates
    once: list = dataclasses.field(default_factory=list)   # the same on every process
    parts: list = dataclasses.field(default_factory=list)  # this process's share, which is summed over the processes
    finish: object = lambda: None  # completes the gradients of the leaves after `run`


def accumulate(model, micro_batches):
    def run(inputs, targets):
        total = 0
        for micro in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches)):
            loss = model(*micro) / micro_batches
            loss.backward()
            total = total + loss.detach()
        return total

    return run


def one_process(model, args):
    leaves = list(model.parameters())
    return Trained(accumulate(model, args.micro_batches), leaves, once=leaves)


def tensor_parallel(model, args):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"attention.qkv": ColwiseParallel(), "attention.proj": RowwiseParallel(), "mlp.0": ColwiseParallel(),
            "mlp.2": RowwiseParallel()}
    for layer in model.layers:
        layer.attention = HeadMajorAttention(layer.attention, args.heads)
        parallelize_module(layer, mesh, plan)

    pairs = []  # a parameter, and the tensor that is updated, which shares its memory
    once, parts = [], []
    for parameter in model.parameters():
        is_divided = isinstance(parameter, DTensor)
        leaf = parameter.to_local().detach().requires_grad_() if is_divided else parameter
        pairs.append((parameter, leaf))
        (parts if is_divided and parameter.placements[0].is_shard() else once).append(leaf)

    def localize():
        for parameter, leaf in pairs:
            if leaf is not parameter:
                assert parameter.grad.placements == parameter.placements, "a gradient was not reduced"
                leaf.grad, parameter.grad = parameter.grad.to_local(), None

    return Trained(accumulate(model, args.micro_batches), [leaf for _, leaf in pairs], once, parts, localize)


def pipeline_parallel(model, args):
    from torch.distributed import pipelining

    rank, stages = dist.get_rank(), dist.get_world_size()
    stage = Stage(model, rank, stages)
    last = rank == stages - 1
    kind = pipelining.Schedule1F1B if args.mode == "1f1b" else pipelining.ScheduleGPipe
    schedule = kind(pipelining.PipelineStage(stage, rank, stages, torch.device("cpu")), args.micro_batches,
                    loss_fn=loss_of)

    def run(inputs, targets):
        losses = []
        if rank == 0:
            schedule.step(inputs)
        elif last:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        return torch.stack(losses).detach().mean() if last else None

    ends = dist.new_group([0, stages - 1])

    def sum_tied():
        if stage.tokens is not None:
            dist.all_reduce(stage.tokens.weight.grad, group=ends)

    leaves = list(stage.parameters())
    tied_copy = stage.tokens.weight if last else None
    return Trained(run, leaves, parts=[leaf for leaf in leaves if leaf is not tied_copy], finish=sum_tied)


def clip(trained):
    """clip_grad_norm_ over all processes, with each element counted once."""
    def squares(leaves):
        return nn.utils.get_total_norm([leaf.grad for leaf in leaves]).square()

    total = squares(trained.parts)
    if dist.is_initialized():
        dist.all_reduce(total)
    nn.utils.clip_grads_with_norm_(trained.leaves, CLIP_NORM, (total + squares(trained.once)).sqrt())


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1337)
    rank, world = 0, 1
    if args.mode != "one":
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
    model = gpt_torch.Gpt2(args)
    make = {"one": one_process, "tensor": tensor_parallel}.get(args.mode, pipeline_parallel)
    trained = make(model, args)
    optimizer = torch.optim.AdamW(trained.leaves, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batches = gpt_torch.Batches(args, 0)

    def step():
        loss = trained.run(*batches.next())
        trained.finish()
        clip(trained)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    losses = [step()]
    first_unix, first_s = time.time(), time.perf_counter() - STARTED
    losses += [step() for _ in range(args.warmup - 1)]
    if world > 1:
        dist.barrier()
    begin = time.perf_counter()
    losses += [step() for _ in range(args.steps)]
    if world > 1:
        dist.barrier()
    seconds = time.perf_counter() - begin

    if rank == world - 1:  # in a pipeline, the process with the losses
        values = [loss.item() for loss in losses]
        assert all(map(math.isfinite, values)), "a loss is not finite: the measurement is invalid"
        line = dict(mode=args.mode, world=world, threads=torch.get_num_threads(),
                    tok_s=round(args.steps * args.batch * args.seq / seconds, 1),
                    step_ms=round(1e3 * seconds / args.steps, 3), first_step_s=round(first_s, 3),
                    first_step_unix=first_unix, last_loss=round(values[-1], 4))
        if args.losses:
            line["losses"] = values
        print(json.dumps(line), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
