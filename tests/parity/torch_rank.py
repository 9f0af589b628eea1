"""Trains as one rank of PyTorch's DistributedDataParallel or FSDP2 on given weights and batches; torch_parity_test.py
starts it.

    torch_rank.py ddp|fsdp2 RANK WORLD FOLDER LAYERS HEADS RATE

RATE is the learning rate. FOLDER contains model.safetensors and tokens.safetensors. The ranks rendezvous through a
file in it, and rank 0 writes losses-MODE.json there. Each rank trains on an equal share of a step's sequences.
"""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

NAMES = [f"{part}.{kind}" for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
         for kind in ("weight", "bias")]


def attribute(name):
    return name.replace(".", "_")


class Block(nn.Module):
    def __init__(self, weights, index, heads):
        super().__init__()
        self.heads = heads
        for name in NAMES:
            setattr(self, attribute(name), nn.Parameter(weights[f"h.{index}.{name}"].clone()))

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], getattr(self, attribute(name) + "_weight"),
                            getattr(self, attribute(name) + "_bias"))

    def project(self, x, name):
        return x @ getattr(self, attribute(name) + "_weight") + getattr(self, attribute(name) + "_bias")

    def forward(self, x):
        parts = self.project(self.norm(x, "ln_1"), "attn.c_attn").chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.project(mixed, "attn.c_proj")
        return x + self.project(F.gelu(self.project(self.norm(x, "ln_2"), "mlp.c_fc"), approximate="tanh"),
                                "mlp.c_proj")


class Gpt2(nn.Module):
    def __init__(self, weights, layers, heads):
        super().__init__()
        for name in ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"):
            setattr(self, attribute(name), nn.Parameter(weights[name].clone()))
        self.blocks = nn.ModuleList([Block(weights, i, heads) for i in range(layers)])

    def forward(self, inputs, targets):
        x = F.embedding(inputs, self.wte_weight) + self.wpe_weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores = F.layer_norm(x, x.shape[-1:], self.ln_f_weight, self.ln_f_bias) @ self.wte_weight.T
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def distribute(model, mode, world):
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    mode, rank, world, folder, layers, heads, rate = sys.argv[1:]
    rank, world, folder = int(rank), int(world), pathlib.Path(folder)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{mode}", rank=rank, world_size=world)
    weights = load_file(folder / "model.safetensors")
    model = Gpt2(weights, int(layers), int(heads))
    trained = distribute(model, mode, world)
    groups = [
        {"params": [w for w in model.parameters() if w.dim() >= 2], "weight_decay": 0.1},
        {"params": [w for w in model.parameters() if w.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=float(rate), betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for batch in load_file(folder / "tokens.safetensors")["tokens"]:
        share = batch.chunk(world)[rank]
        optimizer.zero_grad()
        loss = trained(share[:, :-1], share[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    if rank == 0:
        (folder / f"losses-{mode}.json").write_text(json.dumps(losses))
    dist.barrier()
    # Exits without the interpreter's shutdown, in which LibTorch's remaining threads sometimes crash the process.
    os._exit(0)


if __name__ == "__main__":
    main()
