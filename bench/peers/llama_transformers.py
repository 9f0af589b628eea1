#!/usr/bin/env python3
"""The other side of the row `llama` of `./dev bench models`: transformers trains a Llama with SDPA attention in one
process and prints a JSON line.

The figure is tokens per second over the steps after the warm-up. The data are the bytes of a file, as on our side.
"""

import argparse
import json
import time

import torch
import transformers

parser = argparse.ArgumentParser()
for name in ("layers", "heads", "kv-heads", "width", "inner", "context", "batch", "warmup", "steps", "threads"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--data", required=True)
args = parser.parse_args()

torch.set_num_threads(args.threads)
torch.manual_seed(1337)
config = transformers.LlamaConfig(
    vocab_size=256, hidden_size=args.width, intermediate_size=args.inner, num_hidden_layers=args.layers,
    num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, max_position_embeddings=args.context,
    use_cache=False)
model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().train()
optimizer = torch.optim.AdamW(model.parameters(), fused=True, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
with open(args.data, "rb") as file:
    text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
generator = torch.Generator().manual_seed(7)
seconds = []
for step in range(args.warmup + args.steps):
    began = time.perf_counter()
    starts = torch.randint(0, len(text) - args.context - 1, (args.batch,), generator=generator)
    tokens = torch.stack([text[start:start + args.context] for start in starts.tolist()])
    optimizer.zero_grad(set_to_none=True)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    value = loss.item()
    if step >= args.warmup:
        seconds.append(time.perf_counter() - began)
print(json.dumps({"tokens_per_s": args.batch * args.context * len(seconds) / sum(seconds), "last_loss": value}))
