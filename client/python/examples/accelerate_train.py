"""Fits a straight line with Accelerate, and saves and exits when its job is paused, drained or cancelled:

    trainctl launch --nproc-per-node 2 accelerate_train.py STATE_FOLDER STEPS
"""

import pathlib
import sys
import time

import torch
from accelerate import Accelerator

import trainyard
from trainyard.integrations.accelerate import TrainyardTracker


def main():
    folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    trainyard.stop_requested()  # from here on, SIGTERM does not end this process
    accelerator = Accelerator(cpu=True, log_with=[TrainyardTracker()])
    accelerator.init_trackers("line", config={"steps": steps})
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    first = 1
    if (folder / "step").exists():
        accelerator.load_state(str(folder))
        first = int((folder / "step").read_text()) + 1
    for step in range(first, steps + 1):
        time.sleep(0.01)  # stands for longer work
        x = torch.full((4, 1), float(step % 5))
        loss = ((model(x) - 2 * x) ** 2).mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss.item(), "lr": 0.01}, step=step)
        if trainyard.should_stop():  # on every rank
            accelerator.save_state(str(folder))
            if accelerator.is_main_process:
                (folder / "step").write_text(str(step))
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
