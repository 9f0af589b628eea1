"""JSONL in the forms that users have: tokens, text, or prompts and responses."""

import json
import os

import harness

STEPS = 6


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run(cluster, **keys):
    keys = {"train__steps": STEPS, "train__evaluate": {"every_steps": 3}, "parallel": {"data": "fsdp"}, **keys}
    done = cluster.run_trainctl("run", cluster.write_job(**keys), "--json", timeout=120)
    lines = harness.events(done.stdout)
    assert (lines[-1]["event"], lines[-1]["state"]) == ("done", "SUCCEEDED")
    return harness.steps_of(lines), done.stdout + done.stderr


def test_prompts_train_with_the_same_losses_on_any_number_of_ranks_and_from_a_reused_cache(one_host):
    records = [{"prompt": f"{i} plus {i % 7} is ", "response": f"{i + i % 7}"} for i in range(400)]
    data = {"jsonl": [str(write_lines(one_host.folder / "data.jsonl", records))], "validation": 0.1}

    alone, _ = run(one_host, train__data=data, resources__ranks=1, parallel={"data": "ddp"},
                   checkpoint={"dir": str(one_host.folder / "runs" / "alone")})
    caches = list((one_host.folder / "runs" / ".trainyard-tokens").glob("*/index.json"))
    made = caches[0].stat().st_mtime_ns
    two, _ = run(one_host, train__data=data, checkpoint={"dir": str(one_host.folder / "runs" / "two")})

    assert len(caches) == 1 and caches[0].stat().st_mtime_ns == made, "the second job did not reuse the tokens"
    assert sorted(two) == list(range(1, STEPS + 1))
    for step, loss in alone.items():
        assert abs(two[step] - loss) < 1e-5 * loss, f"step {step}"


def test_lines_that_cannot_be_used_are_listed_before_training(one_host):
    path = one_host.folder / "data.jsonl"
    good = json.dumps({"input_ids": list(range(20)), "labels": [-100] * 10 + list(range(10, 20))}) + "\n"
    path.write_text(good * 3 + "{broken\n" + good + json.dumps({"input_ids": [1, 2]}) + "\n" + good * 50)

    job = one_host.write_job(train__data={"jsonl": [str(path)], "validation": 0})
    done = one_host.run_trainctl("run", job, timeout=120, expect=None)

    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"{path}: line 4: is not JSON" in output, output
    assert f"{path}: line 6: has no field 'labels'" in output, output


def test_sample_refuses_a_model_of_tokens_whose_tokenizer_it_does_not_know(one_host):
    records = [{"input_ids": [(i + k) % 300 for k in range(30)]} for i in range(60)]
    data = {"jsonl": [str(write_lines(one_host.folder / "data.jsonl", records))], "validation": 0.1}
    folder = one_host.folder / "tokens"
    run(one_host, train__data=data, train__model__vocabulary=300, checkpoint__dir=str(folder))

    refused = one_host.run_trainctl("sample", folder, "--tokens", 3, expect=2)
    as_bytes = one_host.run_trainctl("sample", folder, "--tokens", 3, "--tokenizer", "bytes", "--json")

    assert "does not name the tokenizer of its 300 tokens; give --tokenizer PATH" in refused.stderr
    assert harness.events(as_bytes.stdout)[0]["event"] == "sample"


def test_a_sampled_text_of_bytes_ends_as_documents_of_jsonl_do(one_host):
    # The only byte that the model learns to predict is 0, which also ends a document.
    data = {"jsonl": [str(write_lines(one_host.folder / "data.jsonl", [{"prompt": "ab", "response": "\0"}] * 400))],
            "validation": 0.1}
    folder = one_host.folder / "bytes"
    run(one_host, train__data=data, train__steps=20, checkpoint__dir=str(folder))

    done = one_host.run_trainctl("sample", folder, "--prompt", "ab", "--tokens", 5, "--temperature", 0, "--json")

    (text,) = harness.events(done.stdout)
    assert (text["text"], text["generated_tokens"], text["end"]) == ("ab", [0], "end_token")


# Regression: the trainers were killed by SIGBUS, and nothing named the file.
def test_a_text_that_becomes_shorter_while_a_job_trains_is_named(one_host, tmp_path):
    text = tmp_path / "shrinking.txt"
    text.write_text("some words " * 20_000)
    job = one_host.submit(run_folder=tmp_path / "run", train__data__text=[str(text)], train__steps=10_000_000,
                          recovery__max_restarts=0)
    one_host.wait_for_step(job, 2)

    os.truncate(text, 100)

    view = one_host.wait_for_end(job)
    assert view.state_name == "FAILED" and "SIGBUS" not in view.job.reason, view.job.reason
    assert f"{text} has become shorter while it was in use: it had 220000 bytes" in one_host.logs_of(job)
    notices = [event.notice.text for event in one_host.watch(job) if event.HasField("notice")]
    assert any("last output of rank" in notice and "shrinking.txt has become shorter" in notice for notice in notices)


def test_a_job_with_text_and_jsonl_or_with_neither_is_refused(cluster):
    both = cluster.write_job("both.yaml", train__data={"text": [str(cluster.text)], "jsonl": [str(cluster.text)]})
    none = cluster.write_job("none.yaml", train__data={"validation": 0.1})

    assert "together with text" in cluster.run_trainctl("validate", both, expect=2).stderr
    assert "has no text, jsonl, tokens or csv" in cluster.run_trainctl("validate", none, expect=2).stderr
