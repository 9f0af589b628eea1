"""trainctl sample continues prompts with models in folders of transformers and in checkpoints: greedy texts are those
of generate() in transformers, and texts appear as they grow, in the order of their prompts."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess

import finetune_test
import harness
import pytest
import torch
import transformers

TRAINCTL = harness.BIN / "trainctl"
POSITIONS, NEW = 64, 24
SMALL = {"hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": POSITIONS, "bos_token_id": 0, "eos_token_id": 1}
CONFIGS = {
    "gpt2": lambda rows: transformers.GPT2Config(vocab_size=rows, n_positions=POSITIONS, n_embd=48, n_layer=2, n_head=4,
                                                 bos_token_id=0, eos_token_id=1),
    "llama": lambda rows: transformers.LlamaConfig(vocab_size=rows, **SMALL),
    "qwen2": lambda rows: transformers.Qwen2Config(vocab_size=rows, **SMALL, tie_word_embeddings=True),
    "mistral with a window": lambda rows: transformers.MistralConfig(vocab_size=rows, **SMALL, sliding_window=9),
}
PROMPTS = ["What is 3 plus 4?", "What", "What is 11 plus 11? It is 22.", "It is 5. What is 2 plus 2? It is", "7",
           "plus"]


def make_folder(name, folder, end_tokens=None):
    """A random model of transformers with its tokenizer. Its weights are large, so that scores differ much and rounding
    does not decide which token is the most likely."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    tokenizer = finetune_test.train_tokenizer()
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](len(tokenizer))).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn_like(weight) * 0.25)
    if end_tokens:
        model.generation_config.eos_token_id = end_tokens
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def generate(model, tokenizer, prompt, tokens=NEW):
    """The tokens that transformers adds to the prompt."""
    ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    return model.generate(**ids, do_sample=False, max_new_tokens=tokens)[0][ids["input_ids"].shape[1]:].tolist()


def sample(*arguments, expect=0):
    done = subprocess.run([TRAINCTL, "sample", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, f"{done.args}: {done.stderr}"
    return done


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled") / "llama"
    make_folder("llama", folder)
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_texts_of_a_batch_of_prompts_are_those_of_transformers(name, tmp_path):
    model, tokenizer = make_folder(name, tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))

    done = sample(tmp_path / "model", "--prompts", tmp_path / "prompts.jsonl", "--temperature", 0, "--tokens", NEW,
                  "--batch", 4, "--json")

    texts = harness.events(done.stdout)
    assert [text["prompt"] for text in texts] == PROMPTS
    for line, text in enumerate(texts, 1):
        theirs = generate(model, tokenizer, text["prompt"])
        assert text["generated_tokens"] == theirs
        ids = tokenizer(text["prompt"])["input_ids"] + theirs
        assert text["text"] == tokenizer.decode(ids, skip_special_tokens=True)
        assert (text["line"], text["model"]) == (line, str(tmp_path / "model"))


def test_every_end_token_of_generation_config_ends_a_text(tmp_path):
    model, tokenizer = make_folder("llama", tmp_path / "first")
    whole = generate(model, tokenizer, PROMPTS[0])
    ends = [1, whole[5]]
    model, tokenizer = make_folder("llama", tmp_path / "model", end_tokens=ends)

    (text,) = harness.events(sample(tmp_path / "model", "--prompt", PROMPTS[0], "--temperature", 0, "--tokens", NEW,
                                    "--json").stdout)

    (by_file,) = harness.events(sample(tmp_path / "model", "--prompt", PROMPTS[0], "--temperature", 0, "--tokens", NEW,
                                       "--json", "--tokenizer", tmp_path / "model" / "tokenizer.json").stdout)

    assert text["generated_tokens"] == generate(model, tokenizer, PROMPTS[0]) == whole[:whole.index(whole[5]) + 1]
    assert text["end"] == "end_token"
    assert by_file["generated_tokens"] == text["generated_tokens"]


def test_texts_of_a_file_are_printed_in_its_order_and_are_those_of_single_prompts(llama, tmp_path):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    options = ["--tokens", 12, "--seed", 4, "--temperature", 1.2, "--top-p", 0.9, "--top-k", 50]

    together = sample(llama, "--prompts", tmp_path / "prompts.txt", "--batch", 3, *options).stdout
    streamed = sample(llama, "--prompts", tmp_path / "prompts.txt", "--batch", 3, "--stream", *options).stdout
    alone = [sample(llama, "--prompt", prompt, *options).stdout for prompt in PROMPTS]

    assert together == streamed
    parts = re.split(r"^==> (.*) <==\n", together, flags=re.MULTILINE)
    assert parts[1::2] == [f"{tmp_path}/prompts.txt:{line}" for line in range(1, len(PROMPTS) + 1)]
    assert [text.removesuffix("\n") if at < len(PROMPTS) - 1 else text for at, text in enumerate(parts[2::2])] == alone
    assert sample(llama, "--prompt", PROMPTS[0], *options[:2], "--seed", 5).stdout != alone[0]


def test_a_checkpoint_gives_the_text_of_the_folder_it_was_imported_from(llama, tmp_path):
    subprocess.run([TRAINCTL, "checkpoint", "import", llama, tmp_path / "run"], check=True, capture_output=True)
    options = ["--prompt", PROMPTS[0], "--temperature", 0, "--tokens", 9, "--json", "--tokenizer", llama]

    ours, theirs = (harness.events(sample(source, *options).stdout)[0] for source in (tmp_path / "run", llama))

    assert ours["generated_tokens"] == theirs["generated_tokens"]
    assert ours["step"] == 0 and ours["checkpoint"].startswith(str(tmp_path / "run"))


def test_what_cannot_be_sampled_is_refused_with_all_its_problems(llama, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "good"}\n{"prompt": 5}\nnot json\n{"text": "x"}\n')
    refused = sample(llama, "--prompts", bad, expect=2).stderr
    assert all(f"{bad}:{line}:" in refused for line in (2, 3, 4)) and f"{bad}:1:" not in refused, refused
    (tmp_path / "empty.txt").write_text("\n\n")
    assert "has no prompt" in sample(llama, "--prompts", tmp_path / "empty.txt", expect=2).stderr
    assert "missing.txt" in sample(llama, "--prompts", tmp_path / "missing.txt", expect=2).stderr
    assert "--prompt" in sample(llama, "--prompt", "", "--tokenizer", "bytes", expect=2).stderr
    assert "no-such" in sample(tmp_path / "no-such-folder", expect=2).stderr
    (llama / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    try:
        assert "--tokenizer" in sample(llama, expect=2).stderr
        assert sample(llama, "--tokenizer", tmp_path / "tokenizer.json", "--tokens", 3).stdout
    finally:
        (tmp_path / "tokenizer.json").rename(llama / "tokenizer.json")
    for options in (["--top-p", 0], ["--stream", "--json"], ["--prompt", "a", "--prompts", bad], ["--batch", 0]):
        sample(llama, *options, expect=2)


def endless(folder, *options):
    """The command for a text that takes so long that the test must end the process."""
    return [TRAINCTL, "sample", folder, "--tokenizer", "bytes", "--tokens", "1000000", *options]


def test_ctrl_c_ends_the_command_after_the_text_so_far(llama):
    with subprocess.Popen(endless(llama, "--stream", "--prompt", "What is"), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        first = process.stdout.read(40)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert first.startswith(b"What is") and rest.endswith(b"\n")
    assert errors == b""


def test_ctrl_c_ends_json_with_the_texts_that_have_begun(llama, tmp_path):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    command = endless(llama, "--prompts", tmp_path / "prompts.txt", "--batch", "2", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        status = pathlib.Path(f"/proc/{process.pid}/status")
        harness.wait_until(lambda: int(re.search(r"SigCgt:\s*(\w+)", status.read_text()).group(1), 16) & 2,
                           "a handler of SIGINT")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)

    assert process.returncode == 130
    texts = harness.events(output)
    assert [(text["prompt"], text["end"]) for text in texts] == [(prompt, "interrupted") for prompt in
                                                                 PROMPTS[:len(texts)]]


def test_a_closed_pipe_ends_the_command_without_a_message(llama):
    with subprocess.Popen(endless(llama, "--stream"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=60) == -signal.SIGPIPE
        assert process.stderr.read() == b""


def test_a_terminal_shows_text_as_it_grows_with_control_characters_escaped(llama):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(endless(llama, "--prompt", "a\x1b[2J"), stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    while len(shown) < 30:
        shown += os.read(ours, 1024)
    process.send_signal(signal.SIGINT)
    os.close(ours)
    process.communicate(timeout=60)

    assert shown.startswith(b"a\\x1b[2J") and b"\x1b" not in shown
