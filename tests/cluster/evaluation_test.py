"""A job whose evaluation loss no longer falls ends early in the state SUCCEEDED, and the best checkpoint is kept."""

import json

import pytest

import harness

# Only the first evaluation improves, because no loss falls by 100.
IMPATIENT = {"every_steps": 3, "batches": 2, "patience": 2, "min_delta": 100}
WHY = ("stopped after step 9 of 40: the evaluation loss has not fallen by more than 100 for 2 evaluations; it last "
       "fell at step 3, to ")


def done(lines):
    return next(line for line in lines if line.get("event") == "done")


# All ranks must decide alike, although only those of the last stage see a loss.
@pytest.mark.parametrize("parallel", [{"data": "fsdp"}, {"pipeline": {"stages": 2}}, {"tensor": 2}], ids=str)
def test_a_job_that_ends_early_has_succeeded_and_says_why(cluster, parallel):
    run = cluster.folder / "run"
    job = cluster.write_job(train__steps=40, train__evaluate=IMPATIENT, parallel=parallel, train__model__layers=2,
                            resources__ranks=2, checkpoint={"dir": str(run), "keep": 1, "keep_best": True})

    shown = cluster.run_trainctl("run", job)
    entries = harness.events(cluster.run_trainctl("checkpoint", "ls", run, "--json").stdout)
    table = cluster.run_trainctl("checkpoint", "ls", run).stdout
    sample = json.loads(cluster.run_trainctl("sample", run / "best", "--tokens", 3, "--json").stdout)
    cluster.run_trainctl("checkpoint", "export", run / "best", cluster.folder / "out")

    assert "SUCCEEDED  small" in shown.stdout + shown.stderr and WHY in shown.stdout + shown.stderr
    assert sorted(harness.metrics_steps(run)) == list(range(1, 10))
    evaluations = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"eval"' in line]
    best = min(evaluations, key=lambda line: line["loss"])
    assert [entry["step"] for entry in entries if entry.get("best")] == [best["step"]]
    assert {entry["step"] for entry in entries} == {best["step"], 9}
    assert f"evaluation loss {best['loss']:.4f}, the best" in table
    assert sample["step"] == best["step"]
    assert (cluster.folder / "out" / "model.safetensors").exists()


def test_a_run_that_ended_early_continues_when_the_user_resumes_it(cluster):
    run = cluster.folder / "run"
    job = cluster.write_job(train__steps=40, train__evaluate=IMPATIENT, checkpoint={"dir": str(run)})
    first = harness.events(cluster.run_trainctl("run", job, "--json").stdout)

    second = harness.events(cluster.run_trainctl("run", job, "--resume", "--json").stdout)

    assert sorted(harness.steps_of(first)) == list(range(1, 10))
    assert done(first)["state"] == "SUCCEEDED" and done(first)["reason"].startswith(WHY)
    assert sorted(harness.steps_of(second)) == list(range(10, 16))
    assert done(second)["state"] == "SUCCEEDED" and done(second)["reason"].startswith("stopped after step 15 of 40: ")


def test_keys_that_need_evaluations_are_refused_together(cluster):
    job = cluster.write_job(train__evaluate={"patience": 2}, checkpoint={"keep_best": True})

    refused = cluster.run_trainctl("validate", job, expect=2)

    for key in ("train.evaluate.patience", "checkpoint.keep_best"):
        assert f"{key}: needs evaluations; expected train.evaluate.every_steps above 0, found 0" in refused.stderr
