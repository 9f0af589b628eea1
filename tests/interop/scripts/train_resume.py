"""Saves after each epoch and resumes from the last save, as scripts for torchrun --max-restarts do. With --die-at N,
rank 1 of the first start kills itself before epoch N."""

import argparse
import os
import pathlib
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from leave import leave

parser = argparse.ArgumentParser()
parser.add_argument("snapshot", type=pathlib.Path)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--die-at", type=int, default=-1)
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
first_epoch = 0
if args.snapshot.exists():
    snapshot = torch.load(args.snapshot)
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    first_epoch = snapshot["epoch"] + 1
for epoch in range(first_epoch, args.epochs):
    if epoch == args.die_at and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(10 * epoch + rank))
    loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(total := loss.detach().clone())
    if rank == 0:
        print(f"epoch {epoch} loss {total.item():.9f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, args.snapshot)
    dist.barrier()
dist.destroy_process_group()
leave()
