"""The engine computes the numbers of transformers for random small Llama, Mistral and Qwen2 models: logits, loss and
gradients, and the losses of ten steps of AdamW."""

import json
import subprocess

import harness
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

TOLERANCE = 1e-5
STEPS, SEQUENCES, RATE = 10, 4, 1e-3
SMALL = {"vocab_size": 67, "hidden_size": 20, "intermediate_size": 27, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

CONFIGS = {
    "llama_untied": lambda: transformers.LlamaConfig(**SMALL),
    "llama_tied": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama_with_biases": lambda: transformers.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama_one_head_per_group": lambda: transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 4}),
    "llama3_frequencies": lambda: transformers.LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "linear_frequencies": lambda: transformers.LlamaConfig(**SMALL, rope_parameters=LINEAR),
    "llama_of_4200_positions": lambda: transformers.LlamaConfig(**{**SMALL, "max_position_embeddings": 4200},
                                                                rope_parameters=LLAMA3),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**{**SMALL, "hidden_size": 24}, tie_word_embeddings=True),
}
TRAINED = {"llama_with_biases": ["ddp 1", "fsdp 2"], "llama_tied": ["zero1 2"], "mistral": ["zero3 2"],
           "qwen2": ["ddp 2"]}


def make_model(name, folder):
    """Saves a random model to `folder`. All of its weights differ from their initial values, biases included."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = CONFIGS[name]()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float()
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn_like(weight) * 0.2
            weight.copy_(noise if weight.dim() > 1 else weight + noise)
    model.save_pretrained(folder)
    return model


def run(program, *arguments):
    done = subprocess.run([harness.BIN / "tests" / program, *map(str, arguments)], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_close(ours, theirs, what):
    """Permits a difference of TOLERANCE, times the largest element if that is above 1."""
    assert ours.shape == theirs.shape, what
    difference = (ours - theirs.double()).abs().max().item()
    assert difference <= TOLERANCE * max(1, theirs.abs().max().item()), f"{what} differs by {difference}"


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients_are_those_of_transformers(name, tmp_path):
    model = make_model(name, tmp_path)
    length = 4150 if "4200" in name else 60
    tokens = torch.randint(0, SMALL["vocab_size"], (1 if length > 100 else 3, length + 1))
    save_file({"tokens": tokens}, tmp_path / "tokens.safetensors")

    run("model_gradients", tmp_path, tmp_path / "tokens.safetensors", tmp_path / "ours.safetensors")

    ours = load_file(tmp_path / "ours.safetensors")
    logits = model(tokens[:, :-1]).logits
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    assert_close(ours.pop("logits"), logits.detach(), "logits")
    assert_close(ours.pop("loss"), loss.detach(), "the loss")
    theirs = {parameter.removeprefix("model."): weight.grad for parameter, weight in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    for parameter, gradient in theirs.items():
        assert gradient.abs().max() > 1e-4, f"{parameter} has no gradient, so the comparison proves nothing"
        assert_close(ours[parameter], gradient, parameter)


def losses_of_transformers(model, tokens):
    weights = list(model.parameters())
    groups = [{"params": [w for w in weights if w.dim() >= 2], "weight_decay": 0.1},
              {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for batch in tokens:
        optimizer.zero_grad()
        logits = model(batch[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", TRAINED)
def test_losses_of_training_are_those_of_transformers(name, tmp_path):
    model = make_model(name, tmp_path)
    period = torch.randint(0, SMALL["vocab_size"], (97,))
    starts = torch.randint(0, 97, (STEPS, SEQUENCES, 1))
    tokens = period[(starts + torch.arange(33)) % 97]
    save_file({"tokens": tokens}, tmp_path / "tokens.safetensors")
    theirs = losses_of_transformers(model, tokens)
    assert theirs[-1] < 0.95 * theirs[0], "the loss did not fall, so the comparison proves nothing"

    for layout in TRAINED[name]:
        ours = json.loads(run("parity_losses", tmp_path, tmp_path / "tokens.safetensors", RATE, *layout.split()))

        assert ours == pytest.approx(theirs, rel=TOLERANCE), layout
