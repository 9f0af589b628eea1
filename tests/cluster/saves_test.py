"""Requested saves, and the coordinator's records of a job's saves."""

import os
import signal

import harness
import pytest

SLOW = {"train__model": {"layers": 2, "heads": 2, "width": 64, "context": 64},
        "train__batch": {"global": 8, "micro": 2}}
FOREVER = {"train__steps": 1_000_000, **SLOW}


@pytest.fixture
def one_host(cluster):
    cluster.start_coordinator()
    cluster.start_worker("h1", 2, "--metrics", "", "--health", "")
    return cluster


def checkpoints_of(cluster, name, *flags):
    return harness.events(cluster.trainctl("checkpoint", "ls", name, "--json", *flags).stdout)


def test_ls_and_show_of_a_job_match_its_folder(one_host, tmp_path):
    run = tmp_path / "run"
    job = one_host.submit(run_folder=run, train__steps=20, checkpoint__every_steps=5, checkpoint__keep=2)
    assert one_host.wait_for_end(job).state_name == "SUCCEEDED"

    recorded = checkpoints_of(one_host, job)

    assert [(line["step"], line["state"]) for line in recorded] == [(20, "saved"), (15, "saved")]
    in_folder = {line["step"]: line["manifest_hash"] for line in checkpoints_of(one_host, run)}
    assert {line["step"]: line["manifest_hash"] for line in recorded} == in_folder
    table = one_host.trainctl("checkpoint", "ls", job).stdout.splitlines()
    assert table[0].split() == ["STEP", "GENERATION", "SIZE", "AGE", "STATE", "MANIFEST", "PATH"]
    assert table[1].split()[0] == "20" and table[1].endswith("step-00000020")
    assert [line["step"] for line in checkpoints_of(one_host, job, "--step", "15")] == [15]
    one_host.trainctl("checkpoint", "ls", job, "--step", "7", expect=2)
    shown = one_host.trainctl("checkpoint", "show", job, "--step", "15").stdout
    assert in_folder[15] in shown
    done = one_host.trainctl("checkpoint", "show", job, "--step", "7", expect=2)
    assert "no checkpoint of step 7; saved steps: 15, 20" in done.stderr
    assert "verified" in one_host.trainctl("checkpoint", "show", job, "--verify").stdout


def test_cancel_with_save_saves_the_last_step(one_host):
    job = one_host.submit(**FOREVER)
    one_host.wait_for_step(job, 5)

    one_host.trainctl("cancel", job, "--save")

    view = one_host.wait_for_state(job, "CANCELLED")
    assert view.job.checkpoints[-1].step == view.job.last_step >= 5
    assert "cancelled, with a save" in view.job.reason
    one_host.trainctl("cancel", job, "--save")  # not an error for a job that has ended


def test_a_refused_job_does_not_claim_the_run_folder_of_another(one_host, tmp_path):
    run = tmp_path / "run"
    paused = one_host.submit(run_folder=run, train__steps=1_000_000)
    one_host.wait_for_step(paused, 5)
    one_host.trainctl("pause", paused)
    saved = one_host.wait_for_state(paused, "PAUSED").job.last_step
    before = sorted(path.name for path in run.iterdir())

    wider = {"layers": 1, "heads": 2, "width": 32, "context": 16}
    other = one_host.submit(run_folder=run, train__steps=1_000_000, train__model=wider, flags=["--resume"])
    refused = one_host.wait_for_end(other)

    assert refused.state_name == "FAILED", refused.job.reason
    assert "train.model.width was 16, is 32" in refused.job.reason, refused.job.reason
    assert sorted(path.name for path in run.iterdir()) == before
    one_host.trainctl("resume", paused)
    one_host.wait_for_step(paused, saved + 5)


@pytest.mark.slow
def test_a_job_waiting_for_a_run_folder_does_not_get_it_when_a_trainer_of_its_owner_is_killed(cluster, tmp_path):
    cluster.start_coordinator()
    cluster.start_worker("h1", 4, "--metrics", "", "--health", "")
    owner = cluster.submit(run_folder=tmp_path / "run", train__steps=1_000_000, checkpoint__every_steps=20)
    cluster.wait_for_step(owner, 45)
    # Through the API: trainctl would check the folder first.
    request = cluster.stubs.service.SubmitRequest(spec=cluster.get(owner).job.spec, resume=True)
    other = cluster.jobs.Submit(request, timeout=60).job_id
    # The last line of rank 0 before it claims the folder.
    harness.wait_until(lambda: "data: 1 files" in cluster.logs_of(other), "the other job waits for the folder")

    os.kill(cluster.get(owner).pid_of(0), signal.SIGKILL)

    harness.wait_until(lambda: cluster.get(owner).job.generation == 2, "the owner is started again")
    last_step = cluster.wait_for_state(owner, "RUNNING").job.last_step
    refused = cluster.wait_for_end(other)
    assert refused.state_name == "FAILED" and "is in use by another job" in refused.job.reason, refused.job.reason
    cluster.wait_for_step(owner, last_step + 20)


def test_checkpoint_now_with_wait_returns_a_save_made_after_the_request(one_host):
    job = one_host.submit(**FOREVER, checkpoint__every_steps=20)
    before = one_host.wait_for_step(job, 3).job.last_step

    (saved,) = harness.events(one_host.trainctl("checkpoint", "now", job, "--wait", "--json").stdout)

    assert saved["event"] == "checkpoint" and saved["step"] >= before
    assert saved["step"] in [line["step"] for line in checkpoints_of(one_host, job)]
    why = one_host.trainctl("why", job).stdout
    assert "a save was requested: trainctl checkpoint now" in why
    one_host.trainctl("cancel", job)
    one_host.wait_for_state(job, "CANCELLED")


def test_a_save_is_refused_while_the_job_is_not_training_and_suggests_the_nearest_job(one_host):
    job = one_host.submit(train__steps=5)
    assert one_host.wait_for_end(job).state_name == "SUCCEEDED"
    waiting = one_host.submit(resources__ranks=64)

    for verb in (["checkpoint", "now", job], ["checkpoint", "now", waiting], ["cancel", "--save", waiting]):
        assert "the job is not training, so there is nothing to save" in one_host.trainctl(*verb, expect=2).stderr
    typo = waiting[:-1] + ("a" if waiting[-1] != "a" else "b")
    assert f"did you mean {waiting}?" in one_host.trainctl("checkpoint", "now", typo, expect=2).stderr
    several = one_host.trainctl("checkpoint", "ls", "small", expect=2).stderr
    assert "matches 2 jobs" in several and job in several and waiting in several, several
    one_host.trainctl("cancel", waiting)


def test_damage_found_by_one_rank_makes_all_resume_from_the_older_checkpoint_and_why_names_it(one_host, tmp_path):
    run = tmp_path / "run"
    keys = {"run_folder": run, "parallel": {"data": "fsdp"}, "checkpoint__every_steps": 5, "checkpoint__keep": 0}
    first = one_host.submit(train__steps=20, **keys)
    assert one_host.wait_for_end(first).state_name == "SUCCEEDED"
    shard = run / "step-00000020" / "shard-00001.safetensors"  # rank 1's own
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)

    job = one_host.submit(train__steps=25, flags=["--resume"], **keys)

    view = one_host.wait_for_end(job)
    assert (view.state_name, view.job.restarts) == ("SUCCEEDED", 0), view.job.reason
    why = " ".join(one_host.trainctl("why", job).stdout.split())
    for text in ("checkpoint of step 20 is damaged: rank 1 on h1: ", "shard-00001.safetensors", "exp_avg_sq '"):
        assert text in why, why
    notices = [event.notice.text for event in one_host.watch(job) if event.HasField("notice")]
    assert any("restored from step 15," in text for text in notices), notices
    one_host.trainctl("checkpoint", "verify", run)
