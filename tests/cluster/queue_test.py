"""The queue with real processes: preemption with a save, resumption with the same losses, quotas, and what trainctl
shows."""

import urllib.request

import faulty_trainers
import grpc
import harness
import pytest

SLOW = {"train__model": {"layers": 2, "heads": 2, "width": 64, "context": 64},
        "train__batch": {"global": 8, "micro": 2}}

CONFIG = """
queue:
  namespaces:
    - {name: research, weight: 2, max_slots: 2, max_priority: 80}
    - {name: teaching, max_slots: 1}
  preemption: {enabled: true, min_run_s: 0}
"""


def start_coordinator(cluster):
    cluster.config = cluster.folder / "coordinator.yaml"
    cluster.config.write_text(CONFIG)
    cluster.start_coordinator("--config", cluster.config)


@pytest.fixture
def queued(cluster):
    start_coordinator(cluster)
    cluster.start_worker("h1", 2, "--metrics", "", "--health", "")
    return cluster


def start_slow_host(cluster, tmp_path):
    """Like the fixture slow_host of other tests, with the queue of this file."""
    host = faulty_trainers.FaultyHost(cluster, tmp_path)
    host.slow_down()
    start_coordinator(cluster)
    host.start_worker("h1", 2)
    return host


@pytest.fixture
def slow_host(cluster, tmp_path):
    return start_slow_host(cluster, tmp_path)


def submit_command(cluster, *flags):
    """Submits a job that runs on both slots until the returned file exists; returns its id, too."""
    release = cluster.folder / "release"
    argv = ["sh", "-c", f"while ! test -e {release}; do sleep 0.1; done"]
    document = {"name": "command", "command": {"argv": argv}, "resources": {"ranks": 2}}
    return cluster.submit_document(document, *flags), release


def losses_of(cluster, job):
    return {event.step.step: event.step.loss for event in cluster.watch(job) if event.HasField("step")}


def queue_of(cluster, *flags):
    lines = harness.events(cluster.trainctl("queue", "--json", *flags).stdout)
    return ([line for line in lines if line["event"] == "queued"],
            {line["name"]: line for line in lines if line["event"] == "namespace"})


@pytest.mark.slow
def test_a_preempted_job_is_saved_resumes_by_itself_and_has_the_losses_of_an_undisturbed_run(slow_host):
    queued, steps = slow_host.cluster, {"train__steps": 250, **SLOW}
    slow_host.clear_faults()
    undisturbed = queued.submit(**steps)
    assert queued.wait_for_end(undisturbed).state_name == "SUCCEEDED"
    slow_host.slow_down()
    low = queued.submit(flags=["--priority", "10"], **steps)
    queued.wait_for_step(low, 20)

    high = queued.submit(flags=["--priority", "90"], train__steps=40, **SLOW)
    queued.wait_for_state(high, "RUNNING", "SUCCEEDED")
    slow_host.clear_faults()

    assert queued.wait_for_end(high).state_name == "SUCCEEDED"
    view = queued.wait_for_end(low)
    assert (view.state_name, view.job.restarts, view.job.preemptions) == ("SUCCEEDED", 0, 1), view.job.reason
    assert view.job.generation == 2
    assert losses_of(queued, low) == losses_of(queued, undisturbed)
    ended = {job: queued.get(job).job.finished_unix_ms for job in (low, high)}
    assert ended[high] < ended[low]
    why = queued.trainctl("why", low).stdout
    assert "[preemption]" in why and f"preempted by job {high}" in why, why
    assert "preempts job" in queued.trainctl("why", high).stdout
    assert view.job.goodput.lost_s == pytest.approx(0, abs=0.5)


@pytest.mark.slow
def test_a_preemption_survives_a_crash_of_the_coordinator(slow_host):
    queued = slow_host.cluster
    low = queued.submit(flags=["--priority", "10"], train__steps=250, **SLOW)
    queued.wait_for_step(low, 10)
    port = queued.coordinator.address.rsplit(":", 1)[1]
    high, release = submit_command(queued, "--priority", "90")
    harness.wait_until(lambda: queued.get(low).job.preempted_by == high, "the job is preempted")
    queued.coordinator.signal(9)
    queued.coordinator.wait()

    queued.start_coordinator("--config", queued.config, port=port)
    queued.wait_for_state(high, "RUNNING")
    release.touch()
    slow_host.clear_faults()

    assert queued.wait_for_end(high).state_name == "SUCCEEDED"
    view = queued.wait_for_end(low)
    assert (view.state_name, view.job.preemptions) == ("SUCCEEDED", 1)
    assert sorted(losses_of(queued, low)) == list(range(1, 251))


def test_the_queue_shows_order_reasons_forecasts_and_quotas(queued):
    running = queued.submit(flags=["--priority", "80", "--namespace", "research"], train__steps=1_000_000, **SLOW)
    queued.wait_for_step(running, 20)
    first = queued.submit(flags=["--priority", "60", "--namespace", "research"], train__steps=5)
    second = queued.submit(flags=["--priority", "70", "--namespace", "teaching"], resources__ranks=1, train__steps=5)

    jobs, namespaces = queue_of(queued)

    assert [job["id"] for job in jobs] == [second, first]
    assert [job["position"] for job in jobs] == [1, 2]
    assert jobs[1]["cause"] == "quota" and "research uses 2 of 2 slots" in jobs[1]["reason"], jobs[1]
    assert jobs[0]["cause"] == "slots" and jobs[0]["start_in_s"] > 1 and running in jobs[0]["forecast"], jobs[0]
    assert namespaces["research"]["slots"] == 2 and namespaces["research"]["max_slots"] == 2
    assert namespaces["teaching"]["queued"] == 1
    text = queued.trainctl("queue").stdout
    assert text.splitlines()[0].split()[:4] == ["POS", "ID", "NAME", "NAMESPACE"] and "research" in text, text
    assert [job["id"] for job in queue_of(queued, "--namespace", "research")[0]] == [first]
    listed = harness.events(queued.trainctl("list", "--namespace", "teaching", "--json").stdout)
    assert [job["id"] for job in listed] == [second]

    queued.trainctl("set-priority", first, "75", "--reason", "deadline")

    assert [job["id"] for job in queue_of(queued)[0]] == [first, second]
    assert "priority changed from 60 to 75: deadline" in queued.trainctl("why", first).stdout
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{queued.metrics_port}/metrics", timeout=60).read().decode()
    assert 'trainyard_queue_jobs{namespace="research"} 1' in metrics
    assert 'trainyard_namespace_limit{namespace="teaching",resource="slots"} 1' in metrics


def test_a_job_whose_save_fails_is_not_preempted_and_loses_nothing(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_FAULT_POINTS", "rank=0,point=create:shard:before,nth=1,do=enospc")
    host = start_slow_host(cluster, tmp_path)
    low = cluster.submit(flags=["--priority", "10"], train__steps=300, **SLOW)
    cluster.wait_for_step(low, 10)

    high = cluster.submit(flags=["--priority", "90"], train__steps=5, **SLOW)
    harness.wait_until(lambda: "was not preempted" in cluster.trainctl("why", low).stdout, "the save has failed")
    host.clear_faults()

    view = cluster.wait_for_end(low)
    assert (view.state_name, view.job.restarts, view.job.generation) == ("SUCCEEDED", 0, 1), view.job.reason
    assert list(losses_of(cluster, low)) == list(range(1, 301))
    why = cluster.trainctl("why", low).stdout
    assert "the job was not preempted" in why and "No space left on device" in why, why
    assert cluster.wait_for_end(high).state_name == "SUCCEEDED"


def test_users_change_their_minds_while_a_job_is_preempted(queued):
    """The preempted job gets another priority, its preemptor is cancelled, and a user pauses the preempted job."""
    first = queued.submit(flags=["--priority", "10"], train__steps=2_000, **SLOW)
    queued.wait_for_step(first, 10)
    high = queued.submit(flags=["--priority", "90"], train__steps=1_000_000, **SLOW)
    harness.wait_until(lambda: queued.get(first).job.preempted_by == high, "the job is preempted")

    queued.trainctl("set-priority", first, "95")
    queued.trainctl("cancel", high)

    assert queued.wait_for_end(high).state_name == "CANCELLED"
    at = queued.get(first).job.last_step
    assert queued.wait_for_step(first, at + 10).state_name == "RUNNING"
    queued.trainctl("set-priority", first, "10")
    second, release = submit_command(queued, "--priority", "90")
    harness.wait_until(lambda: queued.get(first).job.preempted_by == second, "the job is preempted again")
    queued.trainctl("pause", first)
    release.touch()
    assert queued.wait_for_end(second).state_name == "SUCCEEDED"
    view = queued.get(first)
    assert (view.state_name, view.job.preempted_by) == ("PAUSED", ""), view.job.reason
    queued.trainctl("resume", first)
    assert queued.wait_for_step(first, view.job.last_step + 1).state_name == "RUNNING"


@pytest.mark.parametrize(("key", "value"), [
    ("namespace", "Bad Name"), ("namespace", "*"), ("namespace", "n" * 64), ("namespace", "1st"),
    ("namespace", "a\x1b[31m"), ("priority", 101), ("priority", (1 << 32) - 1)])
def test_values_that_a_job_file_cannot_have_are_refused_by_the_api(queued, stubs, key, value):
    spec = stubs.job.JobSpec(name="api", command=stubs.job.Command(argv=["true"], workdir="/tmp"),
                             resources=stubs.job.Resources(ranks=1), **{key: value})

    with pytest.raises(grpc.RpcError) as refused:
        queued.jobs.Submit(stubs.service.SubmitRequest(spec=spec), timeout=60)

    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT, refused.value
    assert key in refused.value.details() and "\x1b" not in refused.value.details()


def test_requests_about_the_queue_are_checked(queued, stubs):
    service = stubs.service
    calls = [
        (queued.jobs.SetPriority, service.SetPriorityRequest(job_id="nosuchjob"), "INVALID_ARGUMENT"),
        (queued.jobs.SetPriority, service.SetPriorityRequest(job_id="nosuchjob", priority=1 << 31), "INVALID_ARGUMENT"),
        (queued.jobs.GetQueue, service.GetQueueRequest(page_token="after-99999999999999999999"), "INVALID_ARGUMENT"),
        (queued.jobs.GetQueue, service.GetQueueRequest(page_token="after--1"), "INVALID_ARGUMENT"),
        (queued.jobs.GetQueue, service.GetQueueRequest(namespace="n" * 10_000), "INVALID_ARGUMENT")]

    for method, request, code in calls:
        with pytest.raises(grpc.RpcError) as refused:
            method(request, timeout=60)
        assert refused.value.code().name == code, refused.value
    beyond = queued.jobs.GetQueue(service.GetQueueRequest(page_token="after-18446744073709551615"), timeout=60)
    assert not beyond.jobs and not beyond.next_page_token


@pytest.mark.parametrize(("flags", "keys", "texts"), [
    (["--priority", "81", "--namespace", "research"], {}, ["priority 81 is above 80"]),
    (["--namespace", "teaching"], {"resources__ranks": 2}, ["needs 2 slots, and namespace teaching may use 1"]),
    (["--priority", "101"], {}, ["priority", "at most 100"]),
    (["--priority", "urgent"], {}, ["priority", "whole number"]),
    (["--namespace", "No Such"], {}, ["namespace", "No Such"]),
])
def test_what_the_queue_cannot_accept_is_refused_with_a_message(queued, flags, keys, texts):
    done = queued.trainctl("submit", queued.write_job(**keys), *flags, expect=2)

    for text in texts:
        assert text in done.stderr, done.stderr


@pytest.mark.parametrize(("arguments", "code"), [
    (["set-priority", "nosuchjob", "5"], 2), (["set-priority", "nosuchjob", "101"], 2),
    (["set-priority", "nosuchjob"], 2), (["queue", "--limit", "-1"], 2)])
def test_bad_arguments_have_exit_code_2(queued, arguments, code):
    queued.trainctl(*arguments, expect=code)


def test_an_empty_queue_is_reported(queued):
    assert "no job waits for slots" in queued.trainctl("queue").stdout


def test_all_problems_of_the_configuration_are_reported_and_nothing_starts(cluster):
    config = cluster.folder / "bad.yaml"
    config.write_text(f"state: {cluster.folder}/state\nqueue:\n  overtake_s: -1\n  namespaces:\n"
                      "    - {name: Bad Name}\n    - {name: a, wieght: 2}\n    - {name: a}\n")

    program = cluster.start("coordinator", [harness.BIN / "trainyard-coordinator", "--config", config])

    assert program.wait() == 2
    output = program.output()
    for text in ("overtake_s", "wieght", "weight"):
        assert text in output, output
    config.write_text(f"state: {cluster.folder}/state\nqueue:\n  only_listed: true\n  namespaces:\n"
                      "    - {name: Bad Name}\n    - {name: a}\n    - {name: a}\n    - {name: '*'}\n")
    program = cluster.start("coordinator", [harness.BIN / "trainyard-coordinator", "--config", config])
    assert program.wait() == 2
    for text in ("queue.namespaces[0].name", "a second time", "queue.only_listed"):
        assert text in program.output(), program.output()
