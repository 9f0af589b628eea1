"""Fits a straight line with Lightning, and saves and exits when its job is paused, drained or cancelled:

    trainctl launch --nproc-per-node 2 lightning_train.py CHECKPOINT_FILE STEPS
"""

import os
import sys
import time

import torch
from lightning.pytorch import LightningModule, Trainer

from trainyard.integrations.lightning import ReportProgress, StopOnRequest


class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        x, y = batch
        time.sleep(0.01)  # the work of a step
        return ((self.layer(x) - y) ** 2).mean()

    def validation_step(self, batch, index):
        self.log("val_loss", self.training_step(batch, index))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    path, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    x = torch.arange(80, dtype=torch.float32).reshape(-1, 1) % 5
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=4)
    stop = StopOnRequest(path)
    trainer = Trainer(accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), max_steps=steps,
                      callbacks=[stop, ReportProgress()], logger=False, enable_checkpointing=False, limit_val_batches=2,
                      enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Line(), data, data, ckpt_path=path if os.path.exists(path) else None)
    print("stopped" if stop.stopped else "done", "after step", trainer.global_step, flush=True)


if __name__ == "__main__":
    main()
