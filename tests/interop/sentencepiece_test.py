"""Our ids of SentencePiece models are those of the Python library `sentencepiece`. If the model is in a folder of
transformers, they are those of the LlamaTokenizer of transformers. The tests train each model with `sentencepiece`."""

import bisect
import itertools
import json
import shutil

import numpy
import pytest
import sentencepiece
import transformers
from generated_text import training_text
from tokenizer_lines import COMMON_TEXTS, PIECES, check, every_character, fuzzed, ours

FUZZED = 500
LLAMA = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
         "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "split_digits": True}
KINDS = {
    "unigram": {},
    "unigram bytes": {"byte_fallback": True, "normalization_rule_name": "nmt_nfkc_cf"},
    "unigram identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "unigram suffix": {"treat_whitespace_as_suffix": True},
    "unigram no prefix": {"add_dummy_prefix": False, "normalization_rule_name": "nfkc"},
    "bpe": {"model_type": "bpe"},
    "bpe llama": LLAMA,
    "bpe no prefix": {**LLAMA, "add_dummy_prefix": False},
    "bpe removes": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False},
    "bpe keeps": {"model_type": "bpe", "remove_extra_whitespaces": False, "normalization_rule_name": "nmt_nfkc_cf"},
    "bpe over spaces": {**LLAMA, "split_by_whitespace": False},
    "characters": {"model_type": "char"},
    "words": {"model_type": "word"},
}
TEXTS = ["", " ", "a", "  a", "a  ", " a b", "\n", "\n\n a", "\u2581", "a\u2581b", "\u2581 a", "<0x0A>", "<s>", "</s>a",
         "<sep>", "<sep> a<sep>", "x <sep>", "<cls>", "\x00", "\u0001\u0002", "a" * 300, "\U0001f600", "\t\t", "x y  z"]
MARKS = [*PIECES, "<sep>", "<cls>", "<extra>", "  \n"]


def train(folder, **options):
    options = {"user_defined_symbols": ["<sep>", "=>>"], "control_symbols": ["<cls>"], "vocab_size": 1_000, **options}
    if options.get("model_type") == "char":
        options["vocab_size"] = 150
    lines = [line for text in training_text() for line in text.split("\n") if line]
    folder.mkdir(exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "tokenizer"), minloglevel=2, num_threads=2,
        hard_vocab_limit=False, **options)
    return folder / "tokenizer.model"


@pytest.fixture(scope="module", params=KINDS, ids=lambda name: name.replace(" ", "-"))
def kind(request, tmp_path_factory):
    path = train(tmp_path_factory.mktemp("model"), **KINDS[request.param])
    has_ties = KINDS[request.param].get("model_type", "unigram") == "unigram"
    return sentencepiece.SentencePieceProcessor(model_file=str(path)), path, has_ties


def differing_parts(theirs, got, expected):
    """The shortest parts of two splits of one text that differ and begin and end at the same characters, as (ids, ids,
    ids of `expected` before the part). None: they are splits of different texts."""
    pieces = [[theirs.id_to_piece(i) for i in ids] for ids in (got, expected)]
    if "".join(pieces[0]) != "".join(pieces[1]):
        return None
    ends = [list(itertools.accumulate(map(len, split))) for split in pieces]
    parts, i, j = [], 0, 0
    for end in sorted(set(ends[0]) & set(ends[1])):
        next_i, next_j = bisect.bisect_right(ends[0], end, i), bisect.bisect_right(ends[1], end, j)
        if got[i:next_i] != expected[j:next_j]:
            parts.append((got[i:next_i], expected[j:next_j], expected[:j]))
        i, j = next_i, next_j
    return parts


def is_tie(theirs, got, expected):
    """Whether a unigram model may take either split. It takes the split with the larger sum of scores, which it adds in
    float32 from the beginning of the text. Each addition rounds by up to half the distance between float32 numbers of
    the size of the sum, so the model cannot compare two parts of splits more precisely than that."""
    parts = differing_parts(theirs, got, expected)
    if parts is None or theirs.decode(got) != theirs.decode(expected):
        return False
    for ids, other_ids, before in parts:
        scores = [sum(map(theirs.get_score, split)) for split in (ids, other_ids)]
        distance = numpy.spacing(numpy.float32(abs(sum(map(theirs.get_score, before)) + min(scores))))
        if abs(scores[0] - scores[1]) > (len(ids) + len(other_ids)) * distance / 2:
            return False
    return True


def check_ids(theirs, has_ties, got, text, what):
    expected = theirs.encode(text)
    # The versions of the library resolve ties differently.
    if has_ties and is_tie(theirs, got, expected):
        return
    check(got, expected, what)


def compare(kind, texts):
    theirs, path, has_ties = kind
    for text, got in zip(texts, ours(path, texts), strict=True):
        about = f"{text[:200]!r}:"
        check(got.get("error", ""), "", about)
        ids = got["ids"]
        check_ids(theirs, has_ties, ids, text, f"{about} ids")
        check(got["special"], ids, f"{about} ids with special tokens")
        check(got["decoded"], theirs.decode(ids), f"{about} decoded texts")


def test_texts_have_the_ids_of_the_library(kind):
    compare(kind, [*TEXTS, *training_text()[:13], *fuzzed(FUZZED, 15, MARKS),
                   *list(every_character())[:COMMON_TEXTS]])


@pytest.mark.long
def test_every_character_and_fuzzed_texts_have_the_ids_of_the_library(kind):
    compare(kind, [*every_character(), *fuzzed(100_000 // len(KINDS) + 1, 16, MARKS)])


def test_texts_that_are_cut_at_safe_cuts_have_the_ids_of_the_whole(kind):
    theirs, path, has_ties = kind
    texts = [" ".join(fuzzed(40, seed, MARKS)) for seed in range(4)] + [*training_text()[:13]]

    for size in (1, 64):
        for text, got in zip(texts, ours(path, texts, "--cut", size), strict=True):
            check_ids(theirs, has_ties, got["ids"], text, f"{text[:200]!r} by {size}: ids")


def test_only_splits_of_equal_scores_are_ties(tmp_path):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(train(tmp_path)))
    for text in training_text()[:12]:
        best = theirs.encode(text)

        splits = [split for split in theirs.nbest_encode_as_ids(text[:300], 10) if split != theirs.encode(text[:300])]
        swapped = [*best[:100], best[101], best[100], *best[102:]]
        long = next(i for i, piece in enumerate(theirs.encode_as_pieces(text)) if len(piece) > 4)
        characters = [theirs.piece_to_id(c) for c in theirs.id_to_piece(best[long])]

        assert is_tie(theirs, best, best)
        assert len(splits) > 5
        assert not any(is_tie(theirs, split, theirs.encode(text[:300])) for split in splits)
        assert not is_tie(theirs, swapped, best)
        assert not is_tie(theirs, best[:long] + characters + best[long + 1:], best)
        assert not is_tie(theirs, best[:-1], best)


class Pieces:
    PIECES = {1: ("b", -6.2498068), 2: ("its", -6.0236559), 3: ("bits", -12.2722962), 4: ("long text", -9_000.0)}

    def id_to_piece(self, i):
        return self.PIECES[i][0]

    def get_score(self, i):
        return self.PIECES[i][1]

    def decode(self, ids):
        return "".join(map(self.id_to_piece, ids))


def test_rounding_makes_ties_only_where_the_sum_is_large():
    assert is_tie(Pieces(), [4, 4, 1, 2, 4], [4, 4, 3, 4])
    assert not is_tie(Pieces(), [1, 2, 4, 4], [3, 4, 4])


@pytest.mark.parametrize("name", ["bpe", "bpe llama", "bpe no prefix"])
def test_text_of_bpe_models_can_be_cut(name, tmp_path):
    path = train(tmp_path, **KINDS[name])

    cut, = ours(path, ["one two three"], "--cut", 1)

    assert cut["parts"] == 3


# ---- folders of transformers ----

NAMES = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
ADDED = {"added_tokens_decoder": {
    **{str(i): {"content": token, "special": True, "normalized": False}
       for i, token in enumerate(["<unk>", "<s>", "</s>"])},
    "1000": {"content": "<extra>", "special": False, "normalized": True},
    "1001": {"content": "<pad>", "special": True, "normalized": False, "lstrip": True, "rstrip": True},
    "1002": {"content": "word", "special": False, "single_word": True, "normalized": False}}, "pad_token": "<pad>"}
FOLDERS = {
    "plain": {},
    "with beginnings and ends": {"add_bos_token": True, "add_eos_token": True, "legacy": False},
    "legacy": {"add_bos_token": True, "legacy": True},
    "without a prefix": {"add_bos_token": True, "add_prefix_space": False},
    "with added tokens": {"add_bos_token": True, "legacy": False, **ADDED},
    "legacy with added tokens": {"add_eos_token": True, "legacy": True, **ADDED},
}


@pytest.fixture(scope="module")
def llama_model(tmp_path_factory):
    return train(tmp_path_factory.mktemp("llama"), **LLAMA)


def save(model, folder, **config):
    shutil.copy(model, folder / "tokenizer.model")
    (folder / "tokenizer_config.json").write_text(json.dumps({**NAMES, **config}))
    return folder


# (number of fuzzed texts, distance between texts of `every_character`): the tokenizer of transformers is slow.
@pytest.mark.parametrize("fuzz, stride", [pytest.param(100, 14, id="sample"),
                                          pytest.param(FUZZED, 1, id="all", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_transformers_has_the_ids_of_its_tokenizer(name, fuzz, stride, llama_model, tmp_path):
    folder = save(llama_model, tmp_path, **FOLDERS[name])
    theirs = transformers.LlamaTokenizer.from_pretrained(folder)
    texts = [*TEXTS, *training_text()[:13], *fuzzed(fuzz, 17, MARKS),
             *list(every_character())[:COMMON_TEXTS:stride]]

    for text, got in zip(texts, ours(folder, texts), strict=True):
        about = f"{text[:200]!r}:"
        check(got.get("error", ""), "", about)
        ids = theirs.encode(text, add_special_tokens=False)
        check(got["ids"], ids, f"{about} ids")
        special = theirs.encode(text)
        check(got["special"], special, f"{about} ids with special tokens")
        check(got["decoded"], theirs.decode(ids), f"{about} decoded texts")
        check(got["shown"], theirs.decode(special, skip_special_tokens=True), f"{about} texts without special tokens")


@pytest.mark.parametrize("name", FOLDERS)
def test_texts_of_a_folder_that_are_cut_have_the_ids_of_the_whole(name, llama_model, tmp_path):
    folder = save(llama_model, tmp_path, **FOLDERS[name])
    texts = [" ".join(fuzzed(40, seed, MARKS)) for seed in range(4)] + [*training_text()[:13]]
    whole = ours(folder, texts)

    for text, got, expected in zip(texts, ours(folder, texts, "--cut", 1), whole, strict=True):
        check(got["ids"], expected["ids"], f"{text[:200]!r}: ids")


def test_a_tokenizer_json_comes_before_a_tokenizer_model(llama_model, tmp_path):
    folder = save(llama_model, tmp_path)
    theirs = transformers.LlamaTokenizer.from_pretrained(folder)
    theirs.add_tokens(["<only here>"])
    theirs.save_pretrained(folder)
    shutil.copy(llama_model, folder / "tokenizer.model")

    got, = ours(folder, ["<only here>"])

    assert got["ids"] == theirs.encode("<only here>", add_special_tokens=False) == [1000]
