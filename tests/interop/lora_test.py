"""Adapters for the model in a folder of transformers are trained and exported: merged into its weights, and alone in
the form of the library PEFT, which opens them. Adapters that PEFT has made are trained further."""

import json

import finetune_test
import harness
import peft
import pytest
import torch
import transformers
from safetensors import safe_open

LENGTH, STEPS = finetune_test.LENGTH, finetune_test.STEPS
TARGETS = {"gpt2": ["c_attn", "h.1.mlp.c_proj"], "llama": ["q_proj", "v_proj", "layers.*.mlp.down_proj"]}
ADAPTED = {"gpt2": 3, "llama": 6}


def make_folder(path, family, seed):
    """A random model with its tokenizer. Its matrices are large enough that adapters change the logits noticeably."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    tokenizer = finetune_test.train_tokenizer()
    model = transformers.AutoModelForCausalLM.from_config(finetune_test.CONFIGS[family](len(tokenizer))).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(5)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return model, tokenizer


def write_data(path):
    path.write_text("".join(json.dumps(record) + "\n" for record in finetune_test.RECORDS))
    return [str(path)]


def logits_of(model):
    tokens = torch.arange(3 * LENGTH).reshape(3, LENGTH) * 7 % 250
    with torch.no_grad():
        return model.eval()(tokens).logits


@pytest.mark.parametrize("family", TARGETS)
def test_adapters_are_trained_with_fsdp_and_exported_merged_and_alone(cluster, tmp_path, family):
    theirs, tokenizer = make_folder(tmp_path / "theirs", family, seed=5)
    run = tmp_path / "run"
    job = cluster.write_job(train__steps=STEPS, train__model={"path": str(tmp_path / "theirs")},
                            train__data={"jsonl": write_data(tmp_path / "data.jsonl"), "validation": 0},
                            train__optimizer={"lr": 1e-2}, train__batch={"global": 16, "micro": 8},
                            train__lora={"rank": 4, "alpha": 8, "dropout": 0.05, "targets": TARGETS[family]},
                            parallel__data="fsdp", checkpoint__dir=str(run), resources__ranks=2)

    lines = harness.events(cluster.run_trainctl("run", job, "--json", timeout=120).stdout)
    cluster.run_trainctl("checkpoint", "export", run, tmp_path / "merged")
    cluster.run_trainctl("checkpoint", "export", run, tmp_path / "adapter", "--adapter")

    losses = harness.steps_of(lines)
    assert losses[STEPS] < losses[1] - 0.3, losses
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    before = logits_of(base)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    merged, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    assert sum(name.endswith("lora_A.default.weight") for name, _ in adapted.named_parameters()) == ADAPTED[family]
    found = logits_of(adapted)
    assert (found - before).abs().max() > 0.1
    assert (logits_of(merged) - found).abs().max() < 1e-4
    changed = {name for name, weight in merged.named_parameters()
               if not torch.equal(weight, theirs.get_parameter(name))}
    assert len(changed) == ADAPTED[family], changed

    prompt = finetune_test.RECORDS[7]["prompt"]
    done = cluster.run_trainctl("sample", run, "--prompt", prompt, "--tokens", 10, "--temperature", 0, "--json")
    generated = merged.generate(**tokenizer(prompt, return_tensors="pt", return_token_type_ids=False), do_sample=False,
                                max_new_tokens=10)
    assert json.loads(done.stdout)["text"] == tokenizer.decode(generated[0], skip_special_tokens=True)
    more = cluster.run_trainctl("run", job, "--resume", "--set", f"train.steps={STEPS + 2}", "--json", timeout=120)
    assert sorted(harness.steps_of(harness.events(more.stdout))) == [STEPS + 1, STEPS + 2]

    begin = ["--set", f"train.model.init_from={run}/step-{STEPS + 2:08}", "--set", f"checkpoint.dir={tmp_path}/next"]
    refused = cluster.run_trainctl("run", job, *begin, "--set", "train.lora.alpha=16", timeout=120, expect=None)
    assert refused.returncode != 0
    assert "train.lora.alpha was 8 and is 16 in the job" in refused.stdout + refused.stderr
    begin += ["--set", "train.lora.dropout=0", "--set", "train.steps=1"]
    begun = cluster.run_trainctl("run", job, *begin, "--json", timeout=120)
    assert harness.steps_of(harness.events(begun.stdout))[1] < losses[1] - 0.3


@pytest.mark.parametrize("family", TARGETS)
def test_the_first_loss_with_adapters_of_peft_is_that_of_peft(cluster, tmp_path, family):
    """loss_of computes one document at a time, so each sample has one document, and the step has all samples."""
    theirs, tokenizer = make_folder(tmp_path / "theirs", family, seed=6)
    config = peft.LoraConfig(r=3, lora_alpha=6, use_rslora=True, init_lora_weights=False, task_type="CAUSAL_LM",
                             target_modules="all-linear")
    adapted = peft.get_peft_model(theirs, config)
    adapted.save_pretrained(tmp_path / "adapter")
    records = finetune_test.RECORDS
    lengths = [len(tokenizer(record["prompt"] + record["response"])["input_ids"]) for record in records]
    job = cluster.write_job(train__steps=1, train__model={"path": str(tmp_path / "theirs")},
                            train__data={"jsonl": write_data(tmp_path / "data.jsonl"), "validation": 0},
                            train__batch={"global": len(records), "micro": 8, "length": max(lengths) + 1},
                            train__lora={"path": str(tmp_path / "adapter")}, parallel__data="fsdp",
                            checkpoint__dir=str(tmp_path / "run"), resources__ranks=2)

    lines = harness.events(cluster.run_trainctl("run", job, "--json", timeout=120).stdout)
    cluster.run_trainctl("checkpoint", "export", tmp_path / "run", tmp_path / "again", "--adapter")

    expected = finetune_test.loss_of(adapted.eval(), tokenizer)
    assert harness.steps_of(lines)[1] == pytest.approx(expected, rel=1e-5)
    with safe_open(tmp_path / "adapter/adapter_model.safetensors", "pt") as before, \
            safe_open(tmp_path / "again/adapter_model.safetensors", "pt") as after:
        assert set(before.keys()) == set(after.keys())


def test_bad_adapters_are_refused_with_all_problems(cluster, tmp_path):
    make_folder(tmp_path / "theirs", "gpt2", seed=7)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 4, "use_dora": True, "modules_to_save": ["lm_head"], "target_modules": ["c_attn"]}))

    def problems(lora):
        job = cluster.write_job(train__model={"path": str(tmp_path / "theirs")}, train__lora=lora,
                                train__data={"jsonl": write_data(tmp_path / "data.jsonl")})
        return cluster.run_trainctl("validate", job, expect=2).stderr

    assert "'q_proj', 'x.*' match no projection; the projections of a block are attn.c_attn" in problems(
        {"rank": 4, "targets": ["q_proj", "c_attn", "x.*"]})
    config = problems({"path": str(tmp_path / "adapter")})
    assert "use_dora: expected no value" in config and "modules_to_save: expected no value" in config
    assert "adapter_config.json" in problems({"path": str(tmp_path / "nowhere")})
