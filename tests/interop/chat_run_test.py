"""Fine-tuning a folder of transformers on chats gives the same losses as training on the tokens and labels that
transformers makes of these chats. A resumed run notices that the template has changed."""

import json

import harness
import torch
import transformers
from chat_test import MARKED
from finetune_test import CONFIGS, RECORDS, STEPS, train_tokenizer

CHATS = [[{"role": "user", "content": record["prompt"]}, {"role": "assistant", "content": record["response"]}]
         for record in RECORDS]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_chats_train_like_the_tokens_and_labels_of_transformers(cluster, tmp_path):
    torch.manual_seed(5)
    tokenizer = train_tokenizer()
    tokenizer.chat_template = MARKED
    folder = tmp_path / "model"
    transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"](len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    labelled = []
    for messages in CHATS:
        made = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=True)
        labels = [token if mask else -100
                  for token, mask in zip(made["input_ids"], made["assistant_masks"], strict=True)]
        labelled.append({"input_ids": made["input_ids"], "labels": labels})
    files = {"chats": write_lines(tmp_path / "chats.jsonl", [{"messages": messages} for messages in CHATS]),
             "labels": write_lines(tmp_path / "labels.jsonl", labelled)}

    losses = {}
    for name, file in files.items():
        job = cluster.write_job(train__steps=STEPS, train__model={"path": str(folder)},
                                train__data={"jsonl": [file], "validation": 0}, train__optimizer={"lr": 5e-3},
                                train__batch={"global": 16, "micro": 8}, parallel__data="fsdp",
                                checkpoint__dir=str(tmp_path / name))
        losses[name] = harness.steps_of(harness.events(cluster.run_trainctl("run", job, "--json", timeout=120).stdout))
        if name == "chats":
            chat_job = job.read_text()

    assert sorted(losses["chats"]) == list(range(1, STEPS + 1))
    assert losses["chats"] == losses["labels"]

    (folder / "chat_template.jinja").write_text(MARKED + "{{ eos_token }}")
    job.write_text(chat_job)
    refused = cluster.run_trainctl("run", job, "--set", f"train.steps={STEPS + 2}", "--resume", timeout=120,
                                  expect=None)
    assert refused.returncode != 0
    assert "allow-data-change" in refused.stdout + refused.stderr, refused.stdout + refused.stderr
