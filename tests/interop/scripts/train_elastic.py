"""Works with any number of ranks: the samples of a step are divided among the present ranks, and each start
resumes from the last save. With --lose-at N, the last rank of the first start waits before epoch N, until its host is
lost; the other ranks wait for it in the backward pass."""

import argparse
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from leave import leave

SAMPLES = 24

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--lose-at", type=int, default=-1)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
args.folder.mkdir(exist_ok=True)
snapshot_file = args.folder / "snapshot.pt"
first_epoch = 0
if snapshot_file.exists():
    snapshot = torch.load(snapshot_file)
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    first_epoch = snapshot["epoch"] + 1
for epoch in range(first_epoch, args.epochs):
    if epoch == args.lose_at and first_epoch == 0 and rank == world - 1:
        (args.folder / "waits").touch()
        time.sleep(600)
    data = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(epoch))
    x = data[rank::world]
    # DistributedDataParallel averages the gradients of the ranks. With the factor world / SAMPLES, that average is the
    # gradient of the mean loss over all samples.
    loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True), reduction="sum") * (world / SAMPLES)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(total := loss.detach().clone())
    if rank == 0:
        print(f"epoch {epoch} loss {total.item() / world:.9f} of {world}", flush=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                   args.folder / "snapshot.tmp")
        os.replace(args.folder / "snapshot.tmp", snapshot_file)
    dist.barrier()
dist.destroy_process_group()
leave()
