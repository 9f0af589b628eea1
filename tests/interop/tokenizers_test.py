"""Our tokenizers give the ids and the texts of the Python library `tokenizers`, with the settings of well-known models.
The library trains each tokenizer on the spot; vocabularies are small, so that every rule of the settings matters."""

import json

import pytest
import tokenizers
from generated_text import training_text
from tokenizer_lines import COMMON_TEXTS, check, every_character, fuzzed, ours
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

FUZZED = 3_000
ALL_FUZZED = 100_000  # in the test that is marked long
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def train(tokenizer, size=1_500, **options):
    special = options.pop("special", ["<|end|>"])
    tokenizer.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=special, **options))
    return tokenizer


def bytes_alphabet():
    return {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}


def gpt2(add_prefix_space=False):
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(made, **bytes_alphabet())


def split_by(pattern, normalizer=None, ignore_merges=False):
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    made = train(made, **bytes_alphabet())
    made.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|end|> $A", pair="<|end|> $A $B", special_tokens=[("<|end|>", 0)])])
    return made


def byte_fallback(pre_tokenizer=None, normalizer=None, scheme="first"):
    """Llama-2's and Mistral's kinds: characters, and bytes for those that are not in the vocabulary."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    # Training needs words to count. This pre-tokenizer, which makes them, is replaced afterwards.
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    train(made, special=["<unk>", "<s>", "</s>", *bytes_of], limit_alphabet=60)
    description = json.loads(made.to_str())
    description["added_tokens"] = description["added_tokens"][:3]
    made = tokenizers.Tokenizer.from_str(json.dumps(description))
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if scheme != "never" else []))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    return made


def llama2():
    return byte_fallback(normalizer=normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]))


def metaspace(scheme, split):
    return byte_fallback(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split), scheme=scheme)


def with_added_tokens():
    made = split_by(LLAMA3, normalizers.NFC())
    made.add_tokens([AddedToken("word", single_word=True, normalized=True), AddedToken("\u00e9", normalized=True),
                     AddedToken("<pad>", lstrip=True, normalized=False), AddedToken("  ", normalized=False),
                     AddedToken("</s>", rstrip=True, lstrip=True, normalized=False), "the", "the the"])
    made.add_special_tokens([AddedToken("<s>", rstrip=True)])
    return made


def with_unknown(fuse):
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, continuing_subword_prefix="##",
                                           end_of_word_suffix="</w>"))
    made.normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip(), normalizers.Replace(Regex(r"\d+"), "0")])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(False),
                                                  pre_tokenizers.Punctuation("contiguous")])
    made.decoder = decoders.BPEDecoder()
    return train(made, special=["<unk>", "<|end|>"], limit_alphabet=50, continuing_subword_prefix="##",
                 end_of_word_suffix="</w>")


def starcoder():
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    return train(made, **bytes_alphabet())


def deepseek():
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
        pre_tokenizers.Split(Regex(
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    return train(made, **bytes_alphabet())


def split_behavior(behavior, invert=False):
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.NFKD()
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[a-c]|\W"), behavior, invert=invert),
        pre_tokenizers.Split(" ", behavior), pre_tokenizers.Punctuation(behavior)])
    return train(made, special=["<unk>"])


KINDS = {
    "gpt2": gpt2,
    "gpt2 with a prefix": lambda: gpt2(add_prefix_space=True),
    "llama3": lambda: split_by(LLAMA3, ignore_merges=True),
    "qwen2": lambda: split_by(QWEN2, normalizers.NFC()),
    "o200k": lambda: split_by(O200K),
    "llama2": llama2,
    "metaspace first": lambda: metaspace("first", split=False),
    "metaspace always": lambda: metaspace("always", split=True),
    "metaspace never": lambda: metaspace("never", split=True),
    "added tokens": with_added_tokens,
    "unknown": lambda: with_unknown(fuse=False),
    "unknown fused": lambda: with_unknown(fuse=True),
    "starcoder": starcoder,
    "deepseek": deepseek,
    "whitespace": lambda: spaced(pre_tokenizers.Whitespace()),
    "nfd": lambda: split_by(QWEN2, normalizers.NFD()),
    **{f"split {name}": lambda name=name: split_behavior(name)
       for name in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")},
    "split inverted": lambda: split_behavior("merged_with_next", invert=True),
}


def spaced(pre_tokenizer):
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizer
    return train(made, special=["<unk>"])


@pytest.fixture(scope="module", params=KINDS, ids=lambda name: name.replace(" ", "-"))
def kind(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made = KINDS[request.param]()
    made.save(str(path))
    return tokenizers.Tokenizer.from_file(str(path)), path


def compare(kind, texts):
    theirs, path = kind
    plain = [encoding.ids for encoding in theirs.encode_batch(texts, add_special_tokens=False)]
    special = [encoding.ids for encoding in theirs.encode_batch(texts)]
    expected = zip(texts, plain, special, theirs.decode_batch(plain, skip_special_tokens=False),
                   theirs.decode_batch(special), strict=True)
    for got, (text, ids, special_ids, decoded, shown) in zip(ours(path, texts), expected, strict=True):
        about = f"{text[:200]!r}:"
        check(got.get("error", ""), "", about)
        if got["ids"] != ids:
            check(tokens(theirs, got["ids"]), tokens(theirs, ids), f"{about} tokens")
        check(got["ids"], ids, f"{about} ids")
        check(got["decoded"], decoded, f"{about} decoded texts")
        check(got["special"], special_ids, f"{about} ids with special tokens")
        check(got["shown"], shown, f"{about} texts without special tokens")


def tokens(theirs, ids):
    return [theirs.id_to_token(i) for i in ids]


def test_texts_and_code_have_the_tokens_of_the_library(kind):
    compare(kind, ["", " ", "a", *training_text(), training_text()[0].replace("\n", "\r\n")])


def test_fuzzed_texts_have_the_tokens_of_the_library(kind):
    compare(kind, fuzzed(FUZZED // len(KINDS) * 3, seed=15))


@pytest.mark.parametrize("name", ["llama3", "llama2", *(pytest.param(name, marks=pytest.mark.long)
                                                       for name in ("gpt2", "qwen2", "unknown"))])
def test_common_characters_have_the_tokens_of_the_library(name, tmp_path):
    made = KINDS[name]()
    made.save(str(tmp_path / "tokenizer.json"))
    compare((made, tmp_path / "tokenizer.json"), list(every_character())[:COMMON_TEXTS])


@pytest.mark.long
def test_every_character_and_fuzzed_texts_have_the_tokens_of_the_library(kind):
    compare(kind, fuzzed(ALL_FUZZED // len(KINDS) + 1, seed=16) + list(every_character()))


# Pieces of one byte are cut at every safe cut.
@pytest.mark.parametrize("size", [1, pytest.param(64, marks=pytest.mark.long)])
def test_texts_that_are_cut_at_safe_cuts_have_the_tokens_of_the_whole(kind, size):
    theirs, path = kind
    texts = ["\n".join(fuzzed(40, seed)) for seed in range(12)] + [*training_text()]
    for text, got in zip(texts, ours(path, texts, "--cut", size), strict=True):
        check(got["ids"], theirs.encode(text, add_special_tokens=False).ids, f"{text[:200]!r}: ids")


@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen2", "starcoder"])
def test_text_of_well_known_kinds_can_be_cut(name, tmp_path):
    KINDS[name]().save(str(tmp_path / "tokenizer.json"))

    cut, = ours(tmp_path / "tokenizer.json", ["first line\nsecond line\nthird"], "--cut", 1)

    assert cut["parts"] == 3


def test_millions_of_spaces_take_seconds(tmp_path):
    KINDS["llama3"]().save(str(tmp_path / "tokenizer.json"))

    got, = ours(tmp_path / "tokenizer.json", [" " * 3_000_000], "--cut", 1)

    assert 0 < len(got["ids"]) < 3_000_000
