"""Conversations become the tokens and the masks of transformers' apply_chat_template."""

import json
import subprocess

import harness
import pytest
import transformers
from templates_test import CONVERSATIONS, STYLES
from tokenizers_test import KINDS

PROGRAM = harness.BIN / "tests" / "chat_lines"
MARKED = """{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>
{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
{% else %}{{ m.content }}{% endif %}{% endfor %}"""


@pytest.mark.parametrize("template", [STYLES["chatml"], MARKED], ids=["chatml", "marked"])
@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen2"])
def test_conversations_have_the_tokens_and_the_masks_of_transformers(kind, template, tmp_path):
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=KINDS[kind](), eos_token="<|end|>")
    theirs.chat_template = template
    theirs.save_pretrained(tmp_path)
    texts = ["Hello", " spaces ", "\nline", "Ünï\U0001f600code e\u0301", "code { }\n\n\tx", "a" * 50]
    conversations = [[{"role": "user", "content": texts[i - 1]}, {"role": "assistant", "content": text},
                      {"role": "user", "content": text}, {"role": "assistant", "content": text + texts[i - 2]}]
                     for i, text in enumerate(texts)] + CONVERSATIONS[:2]

    lines = "\n".join(json.dumps({"messages": messages}) for messages in conversations)
    output = subprocess.run([PROGRAM, tmp_path], input=lines, capture_output=True, text=True, check=True).stdout

    for messages, line in zip(conversations, output.splitlines(), strict=True):
        expected = theirs.apply_chat_template(messages, tokenize=True, return_dict=True,
                                              return_assistant_tokens_mask=True)
        assert json.loads(line) == {"ids": expected["input_ids"], "mask": expected["assistant_masks"]}, messages
