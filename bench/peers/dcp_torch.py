#!/usr/bin/env python3
"""PyTorch's side of the checkpoint comparison: torch.distributed.checkpoint saves and loads the state of the same
model.

    torchrun --nproc-per-node 2 dcp_torch.py --out FOLDER

The model is that of gpt_torch.py, sharded by fully_shard, with AdamW's state after one step. A save is `async_save` and
the wait for its future, which completes when the bytes are synced; a load is `load` and setting the state of model and
optimizer. Nothing else runs meanwhile. Prints one JSON line with the seconds of each save and load on the slowest rank.
"""

import argparse
import json
import os
import time
import types

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as states

import gpt_torch


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="an existing folder")
    parser.add_argument("--times", type=int, default=2, help="how many saves and loads to measure")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def slowest(seconds):
    slowest = torch.tensor(seconds)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def state_of(model, optimizer):
    model_state, optimizer_state = states.get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    torch.manual_seed(1337)
    model = gpt_torch.Gpt2(types.SimpleNamespace(vocab=256, width=args.width, seq=args.seq, layers=args.layers,
                                                 heads=args.heads))
    gpt_torch.distribute(model, "fsdp2", dist.get_world_size())
    optimizer = gpt_torch.make_optimizer(model, "fsdp2")
    model(torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    saves, loads = [], []
    for index in range(args.times):
        path = f"{args.out}/step-{index}"
        dist.barrier()
        begin = time.perf_counter()
        dcp.async_save(state_of(model, optimizer), checkpoint_id=path).result()
        saves.append(slowest(time.perf_counter() - begin))
        dist.barrier()
        begin = time.perf_counter()
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=path)
        states.set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        loads.append(slowest(time.perf_counter() - begin))
    if dist.get_rank() == 0:
        print(json.dumps({"save_s": saves, "load_s": loads}), flush=True)
    dist.barrier()
    os._exit(0)  # the gloo thread of async_save aborts the process on a normal exit


if __name__ == "__main__":
    main()
