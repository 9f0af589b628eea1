"""trainctl tokenize counts tokens and shows how text is split, for people and for programs."""

import json
import os
import signal
import subprocess

import harness
import pytest
import sentencepiece

TEXT = "Hello, world\nna\u00efve \U0001f600\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tokenizer.model, whose reading also loads libsentencepiece into trainctl, which has protobuf of its own."""
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


def test_a_long_text_is_counted_as_a_whole(model, tmp_path):
    text = "hello world\nmore of these words " * 100_000
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))

    done = tokenize("--tokenizer", model, "--json", write(tmp_path, text))

    assert json.loads(done.stdout)["tokens"] == len(theirs.encode(text))


@pytest.mark.parametrize("content, expected", [
    (b"", "is neither a SentencePiece model nor a tokenizer.json"), (b"hello", "is neither a SentencePiece model"),
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


def test_a_reader_that_closes_the_pipe_ends_it(tmp_path):
    path = write(tmp_path, "a" * 60_000)
    read, written = os.pipe()
    os.close(read)

    done = subprocess.run([harness.BIN / "trainctl", "tokenize", "--show", path], stdout=written,
                          stderr=subprocess.PIPE, text=True, timeout=60)

    os.close(written)
    assert done.returncode == 1
    assert done.stderr == "trainctl: standard output cannot be written: Broken pipe\n"


def test_an_interrupt_ends_it(tmp_path):
    """The text is a pipe that nothing is written to, so that the interrupt finds the program at work."""
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen([harness.BIN / "trainctl", "tokenize", tmp_path / "pipe"], stderr=subprocess.PIPE)
    with open(tmp_path / "pipe", "wb"):  # is open once the program reads
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (-signal.SIGINT, 130)
