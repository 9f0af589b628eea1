#!/usr/bin/env python3
"""The scripts of `./dev bench launch`, which torchrun and `trainctl launch` start unchanged.

    launched.py hello                  initialises gloo, and rank 0 prints the sum of the ranks
    launched.py restart FOLDER         rank 1 kills itself; files in FOLDER contain the time of the kill, and the time
                                       at which each rank runs again
    launched.py train SECONDS FOLDER   trains a small model with DistributedDataParallel, with a line of output per 50
                                       steps
"""

import os
import pathlib
import signal
import sys
import time

STARTED = time.time()


def rank():
    return int(os.environ["RANK"])


def hello():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"sum {total.item()}")
    dist.destroy_process_group()


def restart(folder):
    folder = pathlib.Path(folder)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        (folder / f"again-{rank()}").write_text(str(STARTED))
        return
    (folder / f"ready-{rank()}").touch()
    while len(list(folder.glob("ready-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    if rank() == 1:
        (folder / "killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def train(seconds, folder):
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    step, done = 0, torch.tensor([0])
    while not done.item():
        inputs = torch.randn(64, 256)
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == 20 and rank() == 0:
            (pathlib.Path(folder) / "trains").touch()
        if step % 50 == 0 and rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        done[0] = time.time() - STARTED > float(seconds)
        dist.broadcast(done, 0)
    leave_together(pathlib.Path(folder))


def leave_together(folder):
    """gloo aborts a process whose peer closes its connections, and sometimes a process that destroys its group. So each
    rank exits without destroying its group, once all ranks are done."""
    (folder / f"done-{rank()}").touch()
    while len(list(folder.glob("done-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    {"hello": hello, "restart": restart, "train": train}[sys.argv[1]](*sys.argv[2:])
