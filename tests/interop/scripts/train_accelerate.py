"""A training script as users of Accelerate write it: nothing in it knows how it was started."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from leave import leave

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--lr", type=float, default=1e-2)
arguments = parser.parse_args()

accelerator = Accelerator()
set_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
inputs = torch.randn(64, 8)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8,
                                     shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, (x, y) in zip(range(arguments.steps), loader):
    with accelerator.autocast():
        loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    mean = accelerator.reduce(loss.detach(), reduction="mean").item()
    accelerator.print(f"step {step} loss {mean:.9f} of {accelerator.num_processes}", flush=True)
accelerator.print(f"precision {accelerator.mixed_precision} debug {os.environ.get('ACCELERATE_DEBUG_MODE')}")
accelerator.end_training()
leave()
