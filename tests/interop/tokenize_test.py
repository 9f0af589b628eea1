"""trainctl tokenize counts tokens and shows how text is split, for people and for programs."""

import json
import os
import signal
import subprocess

import harness
import pytest
import sentencepiece
import transformers
from chat_test import MARKED
from finetune_test import CONFIGS, train_tokenizer

TEXT = "Hello, world\nna\u00efve \U0001f600\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tokenizer.model. Reading it loads libsentencepiece, which contains protobuf; so does trainctl."""
    folder = tmp_path_factory.mktemp("model")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world and more of these words"] * 20), model_prefix=str(folder / "tokenizer"),
        vocab_size=300, model_type="bpe", byte_fallback=True, hard_vocab_limit=False, minloglevel=2)
    return folder / "tokenizer.model"


def tokenize(*arguments):
    return subprocess.run([harness.BIN / "trainctl", "tokenize", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60)


def write(folder, text, name="text.txt"):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def test_bytes_are_counted_without_a_tokenizer(tmp_path):
    done = tokenize(write(tmp_path, "abc"), write(tmp_path, "", "empty"))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{tmp_path}/text.txt: 3 tokens of 3 bytes, 1.00 bytes per token",
                                        f"{tmp_path}/empty: 0 tokens of 0 bytes, 0.00 bytes per token",
                                        "all files: 3 tokens of 3 bytes, 1.00 bytes per token"]


def test_a_program_gets_the_ids_and_pieces_of_sentencepiece(model, tmp_path):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))

    done = tokenize("--tokenizer", model.parent, "--show", "--json", write(tmp_path, TEXT))

    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["tokenizer"]["kind"] == "SentencePiece"
    assert got["tokenizer"]["vocabulary"] == theirs.vocab_size()
    assert got["files"][0]["ids"] == theirs.encode(TEXT)
    assert got["files"][0]["pieces"] == theirs.encode(TEXT, out_type=str)
    assert got["tokens"] == len(theirs.encode(TEXT)) and got["bytes"] == len(TEXT.encode())


def test_people_see_an_id_and_a_piece_in_each_line(model, tmp_path):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))

    lines = tokenize("--tokenizer", model, "--show", write(tmp_path, "hello")).stdout.splitlines()

    assert [line.split() for line in lines[1:]] == [[str(i), theirs.id_to_piece(i)] for i in theirs.encode("hello")]


def test_a_token_that_is_a_line_end_is_shown_on_one_line(tmp_path):
    lines = tokenize("--show", write(tmp_path, "a\nb")).stdout.splitlines()

    assert [line.split() for line in lines[1:]] == [["97", "a"], ["10", "\\x0a"], ["98", "b"]]


def test_a_long_text_is_counted_as_a_whole(model, tmp_path):
    text = "hello world\nmore of these words " * 100_000
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))

    done = tokenize("--tokenizer", model, "--json", write(tmp_path, text))

    assert json.loads(done.stdout)["tokens"] == len(theirs.encode(text))


@pytest.mark.parametrize("content, expected", [
    (b"", "is empty: copy it again"), (b"hello", "is neither a SentencePiece model"),
    (b"IQ== 0\n", "in the form of tiktoken"), (b"{}", "model"), (None, "No such file")])
def test_a_file_that_is_no_tokenizer_is_refused(content, expected, tmp_path):
    if content is not None:
        write(tmp_path, content, "tokenizer.model")

    done = tokenize("--tokenizer", tmp_path / "tokenizer.model", write(tmp_path, "a"))

    assert done.returncode != 0 and done.stdout == ""
    assert expected in done.stderr and "tokenizer.model" in done.stderr


def test_text_that_cannot_be_used_is_refused_by_name(model, tmp_path):
    invalid = tokenize("--tokenizer", model, write(tmp_path, b"abc\xff"))
    missing = tokenize(tmp_path / "none.txt", "--json")
    shown = tokenize("--show", write(tmp_path, "a" * 70_000))

    assert invalid.returncode != 0 and "not valid UTF-8 at byte 3" in invalid.stderr and "text.txt" in invalid.stderr
    assert missing.returncode != 0 and "none.txt" in missing.stdout + missing.stderr
    assert shown.returncode != 0 and "--show shows at most" in shown.stderr


def test_a_cut_off_model_is_refused(model, tmp_path):
    part = write(tmp_path, model.read_bytes()[:2_000], "tokenizer.model")

    done = tokenize("--tokenizer", part, write(tmp_path, "a"))

    assert done.returncode != 0 and "damaged or cut off" in done.stderr


def test_a_reader_that_closes_the_pipe_ends_the_command(tmp_path):
    path = write(tmp_path, "a" * 60_000)
    read, written = os.pipe()
    os.close(read)

    done = subprocess.run([harness.BIN / "trainctl", "tokenize", "--show", path], stdout=written,
                          stderr=subprocess.PIPE, text=True, timeout=60)

    os.close(written)
    assert done.returncode == 1
    assert done.stderr == "trainctl: standard output cannot be written: Broken pipe\n"


def test_an_interrupt_ends_the_command(tmp_path):
    """The text is a pipe that nothing is written to, so the program still reads when it is interrupted."""
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen([harness.BIN / "trainctl", "tokenize", tmp_path / "pipe"], stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    with open(tmp_path / "pipe", "wb"):  # is open once the program reads
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (-signal.SIGINT, 130)


# ---- conversations ----

CHATS = [[{"role": "user", "content": "What is 1 plus 2?"}, {"role": "assistant", "content": "It is 3."}],
         [{"role": "assistant", "content": "\u00fc\U0001f600"}, {"role": "user", "content": "a"}]]
OWN = """{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %} {{ m.content }}
{% endgeneration %}{% else %}{{ m.content }}
{% endif %}{% endfor %}"""


@pytest.mark.parametrize("template", [None, OWN], ids=["of the folder", "of a file"])
def test_conversations_are_shown_with_the_text_tokens_and_losses_of_transformers(template, tmp_path):
    theirs = train_tokenizer()
    theirs.chat_template = MARKED
    theirs.save_pretrained(tmp_path)
    lines = write(tmp_path, "\n".join(json.dumps({"turns": chat}) for chat in CHATS) + "\n", "chats.jsonl")
    own = ["--chat-template", write(tmp_path, template, "own.jinja")] if template else []
    arguments = ["--tokenizer", tmp_path, "--chats", *own, "--messages", "turns", "--show", lines]

    shown = json.loads(tokenize(*arguments, "--json").stdout)
    people = tokenize(*arguments).stdout.splitlines()

    counts = [0, 0]
    for chat, got in zip(CHATS, shown["files"][0]["chats"], strict=True):
        expected = theirs.apply_chat_template(chat, chat_template=template, tokenize=True, return_dict=True,
                                              return_assistant_tokens_mask=True)
        assert got["text"] == theirs.apply_chat_template(chat, chat_template=template, tokenize=False)
        assert got["ids"] == expected["input_ids"] and got["loss"] == expected["assistant_masks"]
        assert got["pieces"] == theirs.convert_ids_to_tokens(got["ids"])
        counts = [counts[0] + len(got["ids"]), counts[1] + sum(got["loss"])]
    assert (shown["conversations"], shown["tokens"], shown["tokens_with_loss"]) == (2, *counts)
    assert people[0] == f"{lines}: {counts[0]} tokens of 2 conversations; tokens that count for the loss: {counts[1]}"
    assert sum(line.startswith("* ") for line in people) == counts[1]


def test_all_lines_without_a_usable_conversation_are_named(tmp_path):
    theirs = train_tokenizer()
    theirs.chat_template = MARKED
    theirs.save_pretrained(tmp_path)
    wide = json.dumps({"messages": [{"role": "user", "content": "a", **{f"k{i}": 1 for i in range(200_000)}}]})
    lines = write(tmp_path, "\n".join(["{}", json.dumps({"messages": CHATS[0]}), "[", wide, '{"messages": []}']))

    done = tokenize("--tokenizer", tmp_path, "--chats", lines)
    unusable = tokenize("--tokenizer", tmp_path, "--chats", "--chat-template", write(tmp_path, "{% x %}", "x"), lines)

    assert done.returncode != 0 and done.stdout == "" and "4 lines cannot be used" in done.stderr
    for line, problem in [(1, "has no field 'messages'"), (3, "is not JSON"), (4, "more than 1000 keys"),
                          (5, "without messages")]:
        assert any(f"text.txt:{line}:" in text and problem in text for text in done.stderr.splitlines()), done.stderr
    assert unusable.returncode != 0 and "line 1" in unusable.stderr and "/x " in unusable.stderr


def test_a_job_reads_its_own_field_by_its_own_template(tmp_path):
    theirs = train_tokenizer()
    theirs.chat_template = "{{ messages }}"
    transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"](len(theirs))).save_pretrained(tmp_path / "model")
    theirs.save_pretrained(tmp_path / "model")
    write(tmp_path, OWN, "own.jinja")
    lines = write(tmp_path, "\n".join(json.dumps({"turns": chat}) for chat in CHATS), "chats.jsonl")
    data = {"jsonl": [str(lines)], "validation": 0, "fields": {"messages": "turns"},
            "chat_template": str(tmp_path / "own.jinja")}
    job = {"name": "chats", "checkpoint": {"dir": str(tmp_path / "run")}, "resources": {"ranks": 1},
           "train": {"model": {"path": str(tmp_path / "model")}, "steps": 2, "batch": {"global": 2, "micro": 1},
                     "data": data}}

    done = tokenize("--build", write(tmp_path, json.dumps(job), "job.yaml"))

    count = sum(len(theirs.apply_chat_template(chat, chat_template=OWN, tokenize=True, return_dict=True)["input_ids"])
                for chat in CHATS)
    assert done.returncode == 0, done.stderr
    assert f" {count} tokens" in done.stdout + done.stderr
