"""A folder of transformers with its tokenizer is fine-tuned on prompts and responses, with the losses that transformers
computes for the same tokens and the same mask, and opens in transformers again."""

import json
import math

import harness
import pytest
import sentencepiece
import tokenizers
import torch
import torch.nn.functional as F
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

LENGTH, STEPS = 32, 12
RECORDS = [{"prompt": f"What is {a} plus {b}?", "response": f" It is {a + b}."} for a in range(12) for b in range(12)]


def train_tokenizer():
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([record["prompt"] + record["response"] for record in RECORDS], trainers.BpeTrainer(
        vocab_size=330, show_progress=False, special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


CONFIGS = {
    "gpt2": lambda rows: transformers.GPT2Config(vocab_size=rows, n_positions=LENGTH, n_embd=24, n_layer=2, n_head=2,
                                                 attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, bos_token_id=0,
                                                 eos_token_id=1),
    "llama": lambda rows: transformers.LlamaConfig(vocab_size=rows, hidden_size=24, intermediate_size=40,
                                                   num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                                   max_position_embeddings=LENGTH, bos_token_id=0,
                                                   eos_token_id=1),
}


def loss_of(model, tokenizer):
    """The mean loss over the tokens of all responses, computed one document at a time."""
    total = count = 0
    for record in RECORDS:
        prompt = tokenizer(record["prompt"])["input_ids"]
        response = tokenizer(record["response"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0]
        total += F.cross_entropy(logits[len(prompt) - 1:-1], torch.tensor(response), reduction="sum").item()
        count += len(response)
    return total / count


@pytest.mark.parametrize("family", CONFIGS)
def test_prompts_and_responses_are_trained_with_the_tokenizer_of_the_folder(cluster, tmp_path, family):
    torch.manual_seed(5)
    torch.set_num_threads(1)
    tokenizer = train_tokenizer()
    theirs = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](len(tokenizer))).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    run = tmp_path / "run"
    job = cluster.write_job(train__steps=STEPS, train__model={"path": str(tmp_path / "theirs")},
                            train__data={"jsonl": [str(data)], "validation": 0}, train__optimizer={"lr": 5e-3},
                            train__batch={"global": 16, "micro": 8}, parallel__data="fsdp", checkpoint__dir=str(run))

    lines = harness.events(cluster.run_trainctl("run", job, "--json", timeout=120).stdout)
    cluster.run_trainctl("checkpoint", "export", run, tmp_path / "out")

    losses = harness.steps_of(lines)
    assert sorted(losses) == list(range(1, STEPS + 1))
    before = loss_of(theirs, tokenizer)
    assert losses[1] == pytest.approx(math.log(len(tokenizer)), rel=0.1)
    ours, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    after = loss_of(ours.eval(), transformers.AutoTokenizer.from_pretrained(tmp_path / "out"))
    assert after < before - 0.5, (before, after, losses)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    prompt = RECORDS[7]["prompt"]
    done = cluster.run_trainctl("sample", run, "--prompt", prompt, "--tokens", 10, "--temperature", 0, "--json")
    generated = ours.generate(**tokenizer(prompt, return_tensors="pt", return_token_type_ids=False), do_sample=False,
                              max_new_tokens=10)
    assert json.loads(done.stdout)["text"] == tokenizer.decode(generated[0], skip_special_tokens=True)


def test_a_folder_with_a_sentencepiece_model_is_trained_and_exported(cluster, tmp_path):
    torch.manual_seed(7)
    folder, run = tmp_path / "theirs", tmp_path / "run"
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([record["prompt"] + record["response"] for record in RECORDS]), model_type="bpe",
        model_prefix=str(folder / "tokenizer"), vocab_size=330, hard_vocab_limit=False, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": False, "bos_token": "<s>",
         "eos_token": "</s>", "unk_token": "<unk>"}))
    tokenizer = transformers.LlamaTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"](len(tokenizer))).eval()
    theirs.save_pretrained(folder)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    job = cluster.write_job(train__steps=STEPS, train__model={"path": str(folder)},
                            train__data={"jsonl": [str(data)], "validation": 0}, train__optimizer={"lr": 5e-3},
                            train__batch={"global": 16, "micro": 8}, parallel__data="fsdp", checkpoint__dir=str(run))

    cluster.run_trainctl("run", job, "--json", timeout=120)
    cluster.run_trainctl("checkpoint", "export", run, tmp_path / "out")
    prompt = RECORDS[7]["prompt"]
    done = cluster.run_trainctl("sample", run, "--prompt", prompt, "--tokens", 10, "--temperature", 0, "--json")

    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == (folder / "tokenizer.model").read_bytes()
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    exported = transformers.LlamaTokenizer.from_pretrained(tmp_path / "out")
    before, after = loss_of(theirs, tokenizer), loss_of(ours, exported)
    assert after < before - 0.5, (before, after)
    generated = ours.generate(**exported(prompt, return_tensors="pt", return_token_type_ids=False), do_sample=False,
                              max_new_tokens=10)
    assert json.loads(done.stdout)["text"] == exported.decode(generated[0], skip_special_tokens=True)


def test_the_loss_of_the_first_step_is_that_of_transformers(cluster, tmp_path):
    """One document per sample and all documents in a step, so that no attention crosses documents."""
    torch.manual_seed(6)
    tokenizer = train_tokenizer()
    theirs = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"](len(tokenizer))).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    lengths = [len(tokenizer(record["prompt"] + record["response"])["input_ids"]) for record in RECORDS]
    length = max(lengths) + 1
    assert 2 * (min(lengths) - 1) > length, "two documents would share a sample"
    job = cluster.write_job(train__steps=1, train__model={"path": str(tmp_path / "theirs")},
                            train__data={"jsonl": [str(data)], "validation": 0},
                            train__batch={"global": len(RECORDS), "micro": 8, "length": length},
                            parallel__data="fsdp", checkpoint__dir=str(tmp_path / "run"))

    lines = harness.events(cluster.run_trainctl("run", job, "--json", timeout=120).stdout)

    assert harness.steps_of(lines)[1] == pytest.approx(loss_of(theirs, tokenizer), rel=1e-5)
