"""Trainyard and transformers train GPT-2, from a folder of transformers, on the same batches for several epochs: the
losses of every step are equal, and Trainyard prints the mean loss of each epoch."""

import json
import re

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

LENGTH, BATCH, EPOCHS, RATE, SEED = 32, 8, 6, 5e-5, 1337
MASK = 2**64 - 1


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def sample_at(position, samples):
    """The index of the sample at this position, by the algorithm of worker/data/sampler.cc."""
    epoch, index = divmod(position, samples)
    half = ((samples - 1).bit_length() + 1) // 2
    key, low = mix(mix((SEED + 0x9E3779B97F4A7C15) & MASK) ^ epoch), (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for round_index in range(6):
            left, right = right, left ^ (mix(right ^ mix((key + round_index) & MASK)) & low)
        index = left << half | right
        if index < samples:
            return index


def make_text():
    lines = [f"On day {i} the {'red' if i % 3 else 'blue'} train leaves at {7 + i % 12}:{i * 7 % 60:02} from track "
             f"{i % 5}, and passenger {i * i % 31} waits." for i in range(60)]
    return "\n".join(lines) + "\n"


def make_folder(folder, text):
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=300, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<|endoftext|>",
                                                     eos_token="<|endoftext|>")
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4,
                                     attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def train_in_transformers(model, stream, steps):
    """Trains with the optimizer and the schedule that are the defaults of transformers' Trainer. Returns the number of
    samples and the loss of each step."""
    samples = (len(stream) - 1) // LENGTH
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    scheduler = transformers.get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=steps)
    losses = []
    for step in range(steps):
        rows = [sample_at(step * BATCH + i, samples) * LENGTH for i in range(BATCH)]
        inputs = torch.tensor([stream[row:row + LENGTH] for row in rows])
        targets = torch.tensor([stream[row + 1:row + LENGTH + 1] for row in rows])
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return samples, losses


@pytest.mark.parametrize("ranks", [1, 2])
def test_several_epochs_of_gpt2_have_the_losses_of_transformers(cluster, tmp_path, ranks):
    torch.set_num_threads(1)
    text = make_text()
    (tmp_path / "text.txt").write_text(text)
    model, tokenizer = make_folder(tmp_path / "theirs", text)
    stream = tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]
    steps = -(-EPOCHS * ((len(stream) - 1) // LENGTH) // BATCH)
    run = tmp_path / "run"
    job = cluster.write_job(train__steps=steps, train__seed=SEED, train__model={"path": str(tmp_path / "theirs")},
                            train__data={"text": [str(tmp_path / "text.txt")], "validation": 0},
                            train__batch={"global": BATCH, "micro": BATCH // ranks},
                            train__optimizer={"lr": RATE, "betas": [0.9, 0.999], "weight_decay": 0},
                            train__schedule={"kind": "linear", "formula": "transformers"},
                            parallel__data="ddp" if ranks == 1 else "fsdp", resources__ranks=ranks,
                            checkpoint__dir=str(run))

    cluster.run_trainctl("run", job, timeout=120)

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ours = [line["loss"] for line in lines]
    samples, theirs = train_in_transformers(model, stream, steps)
    assert samples >= 4 * BATCH, "an epoch has too few steps for the order of the samples to matter"
    assert ours == pytest.approx(theirs, abs=1e-3)
    assert theirs[0] - theirs[-1] > 0.02, "the loss falls by too little for a comparison"
    assert lines[-1]["epoch"] == pytest.approx(steps * BATCH / samples)
    means, of_epoch = [], []
    for step, loss in enumerate(theirs, 1):
        of_epoch.append(loss)
        if step * BATCH // samples > len(means):
            means.append(sum(of_epoch) / len(of_epoch))
            of_epoch = []
    logs = [path for path in cluster.folder.rglob("worker/ranks/**/stdout*") if path.is_file()]
    log = "".join(path.read_text() for path in logs)
    printed = re.findall(r"^Epoch (\d+): loss = (\d+\.\d{4})$", log, re.MULTILINE)
    assert [int(epoch) for epoch, _ in printed] == list(range(1, EPOCHS + 1))
    assert [float(loss) for _, loss in printed] == pytest.approx(means, abs=1e-3)
