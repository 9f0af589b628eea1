"""FSDP2 (fully_shard) on a device mesh of CPUs, with clipping and a sharded save, as a user writes it."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from leave import leave

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--save", default="")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


model = nn.Sequential(*[Block(16) for _ in range(3)], nn.Linear(16, 1))
for block in model[:3]:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(args.steps):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    dist.all_reduce(total := loss.detach().clone())
    if rank == 0:
        print(f"step {step} loss {total.item() / dist.get_world_size():.9f} norm {norm.item():.9f}", flush=True)
    if args.save and step == args.steps // 2:
        state, optimizer_state = get_state_dict(model, optimizer)
        dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=args.save)
        dcp.load({"model": state, "optimizer": optimizer_state}, checkpoint_id=args.save)
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optimizer_state)
dist.barrier()
dist.destroy_process_group()
leave()
