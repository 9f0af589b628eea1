"""transformers' Trainer with a small GPT-2, as a user writes it: nothing in it knows how it was started."""

import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from leave import leave


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class PrintLosses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']} norm {logs['grad_norm']} of {args.world_size}",
                  flush=True)


def main():
    folder = sys.argv[1]
    set_seed(3)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        folder, max_steps=6, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2,
        lr_scheduler_type="cosine", logging_steps=1, save_steps=3, report_to=[], use_cpu=True, disable_tqdm=True,
        ddp_backend="gloo")
    trainer = Trainer(model, arguments, train_dataset=Texts(), callbacks=[PrintLosses()])
    resume = os.path.isdir(folder) and any(name.startswith("checkpoint-") for name in os.listdir(folder))
    trainer.train(resume_from_checkpoint=resume or None)


main()
leave()
