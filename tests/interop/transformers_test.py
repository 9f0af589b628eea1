"""The library transformers opens folders of `trainctl checkpoint export` and computes the same numbers, and a job
trains from folders that transformers wrote."""

import json
import subprocess

import harness
import processes
import pytest
import torch
import transformers

SIZES = {"layers": 2, "heads": 2, "width": 16, "context": 16}
TOLERANCE = 1e-5
TEXT = "the rank waits\u00e9"  # 16 bytes: one character has two


@pytest.fixture(scope="module")
def trained(tmp_path_factory, stubs):
    """Trains a small model for a few steps and returns its run folder."""
    processes.start_reaper()
    cluster = harness.Cluster(tmp_path_factory.mktemp("trained"), stubs)
    folder = cluster.folder / "run"
    try:
        cluster.run_trainctl("run", cluster.write_job(train__steps=4, train__model=SIZES, checkpoint__dir=str(folder)))
    finally:
        cluster.close()
    return folder


def checkpoint(*arguments, expect=0):
    done = subprocess.run([harness.BIN / "trainctl", "checkpoint", *map(str, arguments)], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == expect, done
    return done


def our_logits(run_folder, step, tokens, folder):
    """Returns the logits of the engine for the weights that the ranks wrote, joined into one file."""
    checkpoint("reshard", run_folder, step, "--format", "full", "--out", folder / "whole")
    weights = folder / "whole" / f"step-{step:08}" / "model.safetensors"
    arguments = [harness.BIN / "tests" / "gpt2_logits", weights, str(SIZES["heads"]), *map(str, tokens)]
    return torch.tensor(json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout))


def test_an_export_opens_in_transformers_with_every_key_and_our_logits(trained, tmp_path):
    checkpoint("export", trained, tmp_path / "out")

    model, loading = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out", output_loading_info=True)

    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")) is type(model)
    tokens = list(TEXT.encode())
    assert len(tokens) == SIZES["context"]
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([tokens])).logits[0]
    ours = our_logits(trained, 4, tokens, tmp_path)
    assert ours.shape == theirs.shape == (len(tokens), 256)
    assert (ours - theirs).abs().max() <= TOLERANCE
    assert ours.std() > 100 * TOLERANCE, "the logits are too similar for a comparison"


def test_the_tokenizer_of_an_export_maps_text_to_its_bytes(trained, tmp_path):
    checkpoint("export", trained, tmp_path / "out")

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")

    text = "".join(map(chr, range(1, 0x250))) + " \U0001f682\n"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode()), clean_up_tokenization_spaces=False) == text


def test_transformers_generates_from_an_export(trained, tmp_path):
    checkpoint("export", trained, tmp_path / "out")
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")

    generated = model.generate(torch.tensor([list(b"the ")]), do_sample=False, max_new_tokens=8)

    assert generated.shape == (1, 12)


def test_a_model_of_transformers_is_imported_and_trained_further(cluster, tmp_path):
    torch.manual_seed(7)
    config = transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=None,
                                     eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "theirs")
    run = tmp_path / "run"

    checkpoint("import", tmp_path / "theirs", run)

    tokens = list(TEXT.encode())
    with torch.no_grad():
        assert (our_logits(run, 0, tokens, tmp_path) - model(torch.tensor([tokens])).logits[0]).abs().max() <= TOLERANCE
    checkpoint("verify", run)
    sampled = subprocess.run([harness.BIN / "trainctl", "sample", run, "--tokens", "5", "--json"], check=True,
                             capture_output=True, text=True)
    assert json.loads(sampled.stdout)["step"] == 0
    job = cluster.write_job(train__steps=2, train__model=SIZES, resources__ranks=2, checkpoint__dir=str(run))
    lines = harness.events(cluster.run_trainctl("run", job, "--resume", "--json").stdout)
    assert sorted(harness.steps_of(lines)) == [1, 2]
    assert any("restored from step 0" in line.get("text", "") for line in lines), lines


def test_an_import_of_another_model_is_refused_with_every_reason(tmp_path):
    config = transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())

    path.write_text(json.dumps({**config, "activation_function": "relu", "n_inner": 32}))
    settings = checkpoint("import", tmp_path / "theirs", tmp_path / "run", expect=2).stderr
    path.write_text(json.dumps({**config, "n_layer": 2, "n_positions": 32}))
    weights = checkpoint("import", tmp_path / "theirs", tmp_path / "run", expect=2).stderr

    assert "activation_function" in settings and "n_inner: expected 64, found 32" in settings
    assert "h.1.mlp.c_proj.weight" in weights and "wpe.weight is [16, 16], expected [32, 16]" in weights
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_folder_of_transformers_is_trained_from_and_exported_again(cluster, tmp_path, strategy):
    torch.manual_seed(7)
    config = transformers.GPT2Config(vocab_size=300, n_positions=16, n_embd=18, n_layer=2, n_head=3, eos_token_id=7)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.to(torch.bfloat16).save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    run = tmp_path / "run"
    job = cluster.write_job(train__steps=1, train__model={"path": str(tmp_path / "theirs")}, resources__ranks=2,
                            train__data__tokenizer="bytes", parallel__data=strategy, train__optimizer={"lr": 0},
                            checkpoint__dir=str(run))

    cluster.run_trainctl("run", job)
    checkpoint("export", run, tmp_path / "out", "--max-shard-bytes", 20000, "--dtype", "bf16")

    ours, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True,
                                                                      dtype=torch.bfloat16)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    assert (tmp_path / "out" / "model.safetensors.index.json").exists()
    assert ours.config.eos_token_id == 7
    theirs = model.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_is_imported_and_exported_with_equal_weights(tmp_path, tied):
    config = transformers.LlamaConfig(vocab_size=300, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
                                      rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "theirs", max_shard_size="30KB")

    checkpoint("import", tmp_path / "theirs", tmp_path / "run")
    checkpoint("export", tmp_path / "run", tmp_path / "out")

    ours, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    assert type(ours) is type(model) and ours.config.rope_parameters == model.config.rope_parameters
    theirs = model.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs[name]), name


def test_a_subset_trained_under_fsdp_has_the_state_of_one_gpu_and_opens_in_transformers(cluster, tmp_path):
    torch.manual_seed(11)
    config = transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=None,
                                     eos_token_id=None)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    tensors, exported = {}, {}
    for strategy, ranks in (("ddp", 1), ("fsdp", 2)):
        run, out = tmp_path / strategy, tmp_path / f"{strategy}-export"
        job = cluster.write_job(train__steps=3, train__model={"path": str(tmp_path / "theirs")},
                                train__data__tokenizer="bytes", train__freeze=["wte.weight", "wpe.weight", "h.0.*"],
                                parallel__data=strategy, resources__ranks=ranks, checkpoint__dir=str(run))
        cluster.run_trainctl("run", job)
        shown = json.loads(checkpoint("show", run, "--step", 3, "--tensors", "--json").stdout)
        tensors[strategy] = {(t["name"], t["role"]): (t["dtype"], t["shape"]) for t in shown["manifest"]["tensors"]}
        checkpoint("export", run, out)
        model, loading = transformers.GPT2LMHeadModel.from_pretrained(out, output_loading_info=True)
        assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
        exported[strategy] = model.state_dict()

    assert tensors["fsdp"] == tensors["ddp"]
    names = {name for name, role in tensors["fsdp"] if role == "parameter"}
    assert names == {name.removeprefix("transformer.") for name, _ in theirs.named_parameters()}
    trained = {name for name, role in tensors["fsdp"] if role == "exp_avg"}
    assert trained == {name for name in names if name.startswith(("h.1.", "ln_f."))}, "frozen parameters have moments"
    before = theirs.state_dict()
    for name, weight in exported["fsdp"].items():
        own = name.removeprefix("transformer.")
        if own in names:
            assert torch.equal(weight, before[name]) == (own not in trained), name
        assert weight.shape == before[name].shape
        assert (weight - exported["ddp"][name]).abs().max() <= TOLERANCE, name
