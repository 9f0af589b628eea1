"""Texts with a mix of words, numbers, punctuation and code, on which tests train tokenizers. They are generated with
fixed seeds, because the ids of a trained tokenizer depend on every character of its training text."""

import functools
import itertools
import random

WORDS = """
the of to and a is in that for it with as are on be or not each this by an from its which one has was at no all only
they more than two other have may if but when after same before new every first their can between what some does most
number memory value rank file name line state time step text group token model data list order reader result message
table job part path error field folder format size weight language question answer people world water house morning
city river winter journey teacher music garden letter story history science theory measure pressure temperature
government population development environment information organization responsibility understanding communication
write read make give find keep hold send move turn begin end open close start stop use show need want look work call
build learn change follow describe compare contain divide return remove accept refuse train load store select replace
long short small large early late strong simple common public private equal different possible important necessary
together usually quickly never always perhaps however therefore because although without within across against
""".split()
WEIGHTS = list(itertools.accumulate(1 / (rank + 4) for rank in range(len(WORDS))))
PREFIXES, SUFFIXES = ["un", "re", "pre", "over"], ["s", "ed", "ing", "er", "ly", "'s", "less", "ness"]
TYPES = ["int", "bool", "void", "auto", "size_t", "double", "std::string", "int64_t", "const char*", "std::vector<int>"]
OPERATORS = ["==", "!=", "<=", ">=", "<", ">", "&&", "||", "+", "-", "*", "/", "%", "<<", ">>", "|", "&"]
LANGUAGES = "na\u00efve caf\u00e9 \u4f60\u597d\u4e16\u754c \U0001f600\U0001f600 \u0663\u0664 the words"


class Writer:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def word(self):
        word, = self.rng.choices(WORDS, cum_weights=WEIGHTS)
        chance = self.rng.random()
        if len(word) > 3 and chance < 0.25:
            word += self.rng.choice(SUFFIXES)
        if len(word) > 3 and 0.22 < chance < 0.26:
            word = self.rng.choice(PREFIXES) + word
        return word

    def number(self):
        return self.rng.choice(["{}", "{}", "0.{}", "{},000", "{}%", "{}-{}", "0x{:x}", "{}e-3", "1.{}.{}"]).format(
            self.rng.randrange(3_000), self.rng.randrange(60))

    def identifier(self):
        words = [self.word().replace("'", "") for _ in range(self.rng.randrange(1, 4))]
        return self.rng.choice(["_".join(words), "".join(map(str.capitalize, words)), words[0], words[0] + "_"])

    def sentence(self):
        parts = [self.word() for _ in range(self.rng.randrange(4, 22))]
        for i, part in enumerate(parts):
            chance = self.rng.random()
            if chance < 0.03:
                parts[i] = self.number()
            elif chance < 0.05:
                parts[i] = f"`{self.identifier()}`"
            elif chance < 0.07:
                parts[i] = f"({part} {self.word()})"
            elif chance < 0.09:
                parts[i] = f'"{part}"'
            elif chance < 0.16:
                parts[i] += self.rng.choice([",", ",", ";", ":", " \u2014"])
        text = " ".join(parts)
        return text[0].upper() + text[1:] + self.rng.choice([".", ".", ".", ".", "?", "!", "..."])

    def prose(self, paragraphs):
        made = []
        for _ in range(paragraphs):
            chance = self.rng.random()
            if chance < 0.1:
                made.append(f"## {self.sentence()[:-1]}")
            elif chance < 0.2:
                made.append("\n".join(f"| {self.number()} | {self.sentence()} |" for _ in range(4)))
            elif chance < 0.3:
                made.append("\n".join(f"- {self.sentence()}" for _ in range(3)))
            else:
                made.append(" ".join(self.sentence() for _ in range(self.rng.randrange(2, 7))))
        return "\n\n".join(made) + "\n"

    def expression(self):
        left = self.rng.choice([self.identifier(), f"{self.identifier()}({self.identifier()}, {self.number()})",
                                f"{self.identifier()}[{self.identifier()}]", f'"{self.sentence()}\\n"'])
        return f"{left} {self.rng.choice(OPERATORS)} {self.identifier()}" if self.rng.random() < 0.6 else left

    def statement(self, depth):
        indent, chance = "  " * depth, self.rng.random()
        if chance < 0.1:
            return f"{indent}// {self.sentence()}"
        if chance < 0.3 and depth < 4:
            inner = "\n".join(self.statement(depth + 1) for _ in range(self.rng.randrange(1, 4)))
            keyword = self.rng.choice(["if", "while", "} else if"])
            return f"{indent}{keyword} ({self.expression()}) {{\n{inner}\n{indent}}}"
        if chance < 0.6:
            return f"{indent}{self.rng.choice(TYPES)} {self.identifier()} = {self.expression()};"
        return f"{indent}{self.rng.choice(['return ', '', 'co_await '])}{self.expression()};"

    def code(self, functions):
        made = [f'#include "{self.word()}/{self.identifier()}.h"' for _ in range(4)]
        for _ in range(functions):
            made.append(f"\n{self.rng.choice(TYPES)} {self.identifier()}({self.rng.choice(TYPES)} {self.word()}) {{")
            made += [self.statement(1) for _ in range(self.rng.randrange(2, 8))]
            made.append("}")
        return "\n".join(made) + "\n"


@functools.cache
def training_text():
    """Six texts of prose, the longest with about 30,000 characters, six of code, and eight copies of LANGUAGES."""
    prose = [Writer(seed).prose(20 + 18 * seed) for seed in range(6)]
    code = [Writer(100 + seed).code(10 + 4 * seed) for seed in range(6)]
    return (*prose, *code, *[LANGUAGES] * 8)
