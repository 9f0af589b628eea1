"""The same initial weights and batches give the same losses as PyTorch, over twenty steps of AdamW: one process is
compared with plain PyTorch, two ranks with its DistributedDataParallel and its FSDP2."""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TRAINYARD_BIN", ROOT / "build" / "bin"))

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 3, 4, 64, 32, 256
STEPS, SEQUENCES, RATE = 20, 4, 1e-3


def initial_weights(generator):
    """Parameters with the names and shapes of GPT-2's published files: matrices are [in, out]."""

    def normal(*shape):
        return torch.randn(*shape, generator=generator) * 0.05

    weights = {"wte.weight": normal(VOCABULARY, WIDTH), "wpe.weight": normal(CONTEXT, WIDTH)}
    norms = ["ln_f"]
    for i in range(LAYERS):
        norms += [f"h.{i}.ln_1", f"h.{i}.ln_2"]
        for name, width_in, width_out in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            weights[f"h.{i}.{name}.weight"] = normal(width_in, width_out)
            weights[f"h.{i}.{name}.bias"] = normal(width_out)
    for name in norms:
        weights[f"{name}.weight"] = 1 + normal(WIDTH)
        weights[f"{name}.bias"] = normal(WIDTH)
    return weights


def mean_loss(p, inputs, targets):
    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), p[f"{name}.weight"], p[f"{name}.bias"])

    def project(x, name):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    x = F.embedding(inputs, p["wte.weight"]) + p["wpe.weight"][: inputs.shape[1]]
    for i in range(LAYERS):
        parts = project(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(WIDTH, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + project(mixed, f"h.{i}.attn.c_proj")
        hidden = F.gelu(project(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
        x = x + project(hidden, f"h.{i}.mlp.c_proj")
    scores = norm(x, "ln_f") @ p["wte.weight"].T
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def losses_of_torch(weights, tokens):
    p = {name: value.clone().requires_grad_(True) for name, value in weights.items()}
    groups = [
        {"params": [w for w in p.values() if w.dim() >= 2], "weight_decay": 0.1},
        {"params": [w for w in p.values() if w.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for batch in tokens:
        optimizer.zero_grad()
        loss = mean_loss(p, batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def training_data(tmp_path):
    """Weights and batches, which are also written to files in tmp_path."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    weights = initial_weights(generator)
    # Bytes that repeat, so that the model can learn and the losses fall.
    period = torch.randint(0, VOCABULARY, (97,), generator=generator)
    starts = torch.randint(0, 97, (STEPS, SEQUENCES, 1), generator=generator)
    tokens = period[(starts + torch.arange(CONTEXT + 1)) % 97]
    save_file(weights, tmp_path / "model.safetensors")
    config = {"model_type": "gpt2", "n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "n_positions": CONTEXT,
              "vocab_size": VOCABULARY, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"tokens": tokens}, tmp_path / "tokens.safetensors")
    return weights, tokens


def our_losses(folder, strategy, ranks):
    command = [BIN / "tests" / "parity_losses", folder, folder / "tokens.safetensors", str(RATE), strategy, str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def losses_of_torch_ranks(folder, mode, ranks):
    program = [sys.executable, ROOT / "tests" / "parity" / "torch_rank.py", mode]
    others = [str(ranks), folder, str(LAYERS), str(HEADS), str(RATE)]
    processes = [subprocess.Popen([*program, str(rank), *others], stderr=subprocess.PIPE, text=True)
                 for rank in range(ranks)]
    try:
        errors = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(errors)
    return json.loads((folder / f"losses-{mode}.json").read_text())


def assert_same(ours, theirs):
    assert len(ours) == STEPS
    assert theirs[-1] < 0.8 * theirs[0], "the loss did not fall, so the comparison proves nothing"
    for step, (a, b) in enumerate(zip(ours, theirs), start=1):
        assert math.isclose(a, b, rel_tol=1e-5), f"step {step}: ours {a}, PyTorch's {b}"


def test_losses_are_those_of_pytorch(training_data, tmp_path):
    assert_same(our_losses(tmp_path, "ddp", 1), losses_of_torch(*training_data))


@pytest.fixture(scope="module")
def losses_of_modes():
    """{mode of torch_rank.py: losses}, so that each mode runs once; the data are always the same."""
    return {}


@pytest.mark.parametrize("theirs, ours", [("ddp", "ddp"), ("ddp", "zero1"), ("fsdp2", "fsdp"), ("fsdp2", "zero2")])
def test_losses_of_two_ranks_are_those_of_pytorchs_own_strategies(training_data, tmp_path, losses_of_modes, theirs,
                                                                  ours):
    if theirs not in losses_of_modes:
        losses_of_modes[theirs] = losses_of_torch_ranks(tmp_path, theirs, 2)

    assert_same(our_losses(tmp_path, ours, 2), losses_of_modes[theirs])
