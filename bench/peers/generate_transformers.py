#!/usr/bin/env python3
"""The peer in the rows `sample-*` of `./dev bench models`: transformers generates text with its cache of keys and
values. Prints the speed as a line of JSON.

Arguments: the folder of the model, the number of new tokens, threads, and prompts, whose bytes are the tokens. A short
text is generated first, as a warm-up.
"""

import json
import sys
import time

import torch
import transformers

folder, new, threads, prompts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
torch.set_num_threads(threads)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").float().eval()
ids = torch.tensor([list(prompt.encode()) for prompt in prompts])


def generate(tokens):
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)


generate(8)
began = time.perf_counter()
tokens = generate(new)
seconds = time.perf_counter() - began
count = tokens.numel() - ids.numel()
print(json.dumps({"tokens_per_s": count / seconds, "tokens": count}))
