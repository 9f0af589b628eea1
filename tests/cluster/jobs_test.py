"""Jobs without faults on real processes: submitting, watching, waiting, running concurrently, cancelling, reading
output."""

import math

import harness
import pytest


def test_a_job_trains_to_its_end_reports_every_step_once_and_reduces_the_loss(one_host, tmp_path):
    job = one_host.submit(run_folder=tmp_path / "run", train__steps=60,
                          train__evaluate={"every_steps": 20, "batches": 2})

    seen = one_host.watch(job)

    steps = [event.step.step for event in seen if event.HasField("step")]
    losses = [event.step.loss for event in seen if event.HasField("step")]
    assert steps == list(range(1, 61))
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0] - 0.5
    assert [event.eval.step for event in seen if event.HasField("eval")] == [20, 40, 60]
    sequences = [event.sequence for event in seen]
    assert sequences == sorted(set(sequences))
    view = one_host.get(job)
    assert view.state_name == "SUCCEEDED"
    assert (view.job.last_step, view.job.generation, view.job.restarts) == (60, 1, 0)
    assert harness.metrics_steps(tmp_path / "run") == dict(zip(steps, losses))


def test_a_job_that_succeeds_passes_through_its_states_in_order(one_host):
    job = one_host.submit(train__steps=3)

    names = [harness.JobView(event, one_host.stubs).state_name for event in
             (event.state for event in one_host.watch(job) if event.HasField("state"))]

    order = ["QUEUED", "PLACED", "STARTING", "RUNNING", "STOPPING", "SUCCEEDED"]
    positions = [order.index(name) for name in names]
    assert positions == sorted(positions), names
    assert names[-1] == "SUCCEEDED"


def test_trainctl_watch_shows_the_same_events_as_the_stream(one_host):
    job = one_host.submit(train__steps=25)
    one_host.wait_for_end(job)

    lines = harness.events(one_host.trainctl("watch", job, "--json").stdout)

    seen = {event.step.step: event.step.loss for event in one_host.watch(job) if event.HasField("step")}
    assert harness.steps_of(lines) == seen
    assert lines[-1]["event"] == "done"
    assert lines[-1]["state"] == "SUCCEEDED"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_job_file_trains_alike_on_one_rank_and_on_eight(cluster, strategy):
    file = cluster.write_job(train__batch={"global": 8, "micro": 1}, train__steps=5, parallel__data=strategy)

    losses = []
    for ranks in (1, 8):
        done = cluster.run_trainctl("run", file, "--json", "--set", f"resources.ranks={ranks}", timeout=300)
        losses.append(harness.steps_of(harness.events(done.stdout)))

    assert sorted(losses[0]) == [1, 2, 3, 4, 5]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_two_jobs_run_concurrently_on_one_daemon_with_enough_slots(cluster):
    cluster.start_coordinator()
    cluster.start_worker("h1", slots=4)

    jobs = [cluster.submit(name=name, train__steps=1_000_000) for name in ("first", "second")]
    for job in jobs:
        cluster.wait_for_step(job, 5)

    assert len(harness.trainers()) == 4
    assert [cluster.get(job).state_name for job in jobs] == ["RUNNING", "RUNNING"]
    for job in jobs:
        cluster.trainctl("cancel", job)
    assert [cluster.wait_for_end(job).state_name for job in jobs] == ["CANCELLED", "CANCELLED"]
    harness.wait_until(lambda: not harness.trainers(), "no trainer is left")


def test_a_job_with_more_ranks_than_slots_waits_and_status_shows_why(one_host):
    job = one_host.submit(resources__ranks=3, train__batch={"global": 6, "micro": 2})

    view = one_host.wait_for_state(job, "QUEUED")

    status = one_host.trainctl("status", job).stdout
    for text in (view.job.reason, status):
        assert "3" in text and "2" in text and "slot" in text, text
    assert harness.events(one_host.trainctl("status", job, "--json").stdout)[0]["state"] == "QUEUED"
    one_host.start_worker("h2", slots=1)
    assert one_host.wait_for_end(job).state_name == "SUCCEEDED"


def test_a_waiting_job_starts_when_the_one_before_it_ends(one_host):
    first = one_host.submit(name="first", train__steps=1_000_000)
    one_host.wait_for_step(first, 1)
    second = one_host.submit(name="second", train__steps=5)
    assert one_host.get(second).state_name == "QUEUED"

    one_host.trainctl("cancel", first)

    assert one_host.wait_for_end(second).state_name == "SUCCEEDED"


def test_two_daemons_with_one_rank_each_train_together(cluster):
    cluster.start_coordinator()
    cluster.start_worker("h1", slots=1)
    cluster.start_worker("h2", slots=1)

    job = cluster.submit(train__steps=30)

    view = cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED"
    assert [(rank.rank, rank.host) for rank in view.job.ranks] == [(0, "h1"), (1, "h2")]


def test_cancel_stops_every_rank_and_a_second_cancel_is_not_an_error(one_host):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 3)

    one_host.trainctl("cancel", job)
    view = one_host.wait_for_end(job)
    one_host.trainctl("cancel", job)

    assert view.state_name == "CANCELLED"
    harness.wait_until(lambda: not harness.trainers(), "no trainer is left")
    assert harness.events(one_host.trainctl("status", job, "--json").stdout)[0]["state"] == "CANCELLED"


def test_logs_can_be_limited_to_a_rank_or_a_tail_or_followed(one_host):
    job = one_host.submit(train__steps=400)
    one_host.wait_for_step(job, 1)

    followed = one_host.start_trainctl("--coordinator", one_host.coordinator.address, "logs", "-f", "--all-ranks", job)
    assert followed.wait(60) == 0
    one_host.wait_for_end(job)
    everything = one_host.trainctl("logs", "--all-ranks", job).stdout.splitlines()
    by_default = one_host.trainctl("logs", job).stdout.splitlines()
    of_rank_1 = one_host.trainctl("logs", "--rank", "1", job).stdout.splitlines()
    last_two = one_host.trainctl("logs", "--rank", "0", "--tail", "2", job).stdout.splitlines()
    of_rank_0 = one_host.trainctl("logs", "--rank", "0", job).stdout.splitlines()

    assert of_rank_0, "rank 0 wrote nothing"
    assert sorted(everything) == sorted([f"rank 0: {line}" for line in of_rank_0] + [f"rank 1: {line}"
                                                                                     for line in of_rank_1])
    assert by_default == of_rank_0, "without --rank, logs must print the output of rank 0, which reports for the job"
    assert last_two == of_rank_0[-2:]
    assert sorted(followed.output().splitlines()) == sorted(everything)


def test_list_names_every_job_newest_first(one_host):
    jobs = [one_host.submit(name=f"job-{index}", train__steps=2) for index in range(3)]
    for job in jobs:
        one_host.wait_for_end(job)

    listed = [line["id"] for line in harness.events(one_host.trainctl("list", "--json").stdout) if "id" in line]
    table = one_host.trainctl("list").stdout

    assert listed == jobs[::-1]
    assert all(job in table and f"job-{index}" in table for index, job in enumerate(jobs))


def test_status_shows_step_phase_and_report_age_of_every_rank(one_host):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 5)

    def both_ranks_step():
        status = harness.events(one_host.trainctl("status", job, "--json").stdout)[0]
        ranks = status["ranks"]
        return status if all(rank["last_step"] > 0 and rank["last_report_age_s"] < 5 for rank in ranks) else None

    status = harness.wait_until(both_ranks_step, "both ranks have reported a step, the last one recently")
    assert (status["state"], status["generation"]) == ("RUNNING", 1)
    assert [rank["rank"] for rank in status["ranks"]] == [0, 1]
    assert all(rank["phase"] == "train" for rank in status["ranks"])
    one_host.trainctl("cancel", job)
    one_host.wait_for_end(job)


def test_submitting_twice_with_the_same_job_id_creates_one_job(one_host):
    request = one_host.stubs.service.SubmitRequest(job_id="retry0001", default_run_root=str(one_host.folder))
    spec = request.spec
    spec.name = "twice"
    spec.train.model.layers = 1
    spec.train.model.heads = 1
    spec.train.model.width = 8
    spec.train.model.context = 8
    spec.train.data.text.append(str(one_host.text))
    spec.train.batch.global_size = 2
    spec.train.steps = 2

    answers = [one_host.jobs.Submit(request, timeout=60) for _ in range(2)]

    assert {answer.job_id for answer in answers} == {"retry0001"}
    assert len(one_host.jobs.List(one_host.stubs.service.ListRequest()).jobs) == 1
    assert one_host.wait_for_end("retry0001").state_name == "SUCCEEDED"
