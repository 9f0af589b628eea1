"""What an operator does with jobs and hosts, and the resulting output."""

import json
import signal

import faulty_trainers
import harness
import pytest

SLOW = {"train__model": {"layers": 2, "heads": 2, "width": 64, "context": 64},
        "train__batch": {"global": 8, "micro": 2}}
FOREVER = {"train__steps": 1_000_000, **SLOW}


@pytest.fixture
def slow_hosts(cluster, tmp_path):
    """Starts a coordinator. The hosts that a test starts with this are slow until the test clears the faults, so no job
    ends before the test has acted."""
    hosts = faulty_trainers.FaultyHost(cluster, tmp_path)
    hosts.slow_down()
    cluster.start_coordinator()
    return hosts


@pytest.fixture
def two_hosts(cluster):
    cluster.start_coordinator()
    for name in ("h1", "h2"):
        cluster.start_worker(name, 2, "--metrics", "", "--health", "")
    return cluster


def object_of(done):
    return json.loads(done.stdout)


def hosts_of(job_view):
    return {rank.host for rank in job_view.job.ranks}


def wait_for_second_generation(cluster, slow_hosts, job):
    """Returns when the action of the test has had its effect; the rest of the job is fast."""
    harness.wait_until(lambda: cluster.get(job).job.generation == 2, f"job {job} is started again")
    slow_hosts.clear_faults()


def test_cluster_lists_hosts_with_their_slots_and_jobs(two_hosts):
    job = two_hosts.submit(**FOREVER)
    two_hosts.wait_for_state(job, "RUNNING")

    table = two_hosts.trainctl("cluster").stdout.splitlines()
    hosts = {line["name"]: line for line in harness.events(two_hosts.trainctl("cluster", "--json").stdout)}

    assert table[0].split()[:4] == ["HOST", "STATE", "SLOTS", "JOBS"]
    assert [row.split()[:3] for row in table[1:]] == [["h1", "up", "2/2"], ["h2", "up", "0/2"]]
    assert hosts["h1"]["jobs"] == [job] and hosts["h2"]["jobs"] == []
    assert hosts["h1"]["reachable"] and abs(hosts["h1"]["clock_offset_s"]) < 5
    assert hosts["h1"]["version"] and hosts["h1"]["disk_free_bytes"] > 0


def test_a_cordoned_host_gets_no_new_ranks_until_it_is_uncordoned(two_hosts):
    two_hosts.trainctl("cordon", "h1", "--reason", "fan is loud")
    job = two_hosts.submit(train__steps=5)
    assert two_hosts.wait_for_end(job).state_name == "SUCCEEDED"
    assert hosts_of(two_hosts.get(job)) == {"h2"}
    assert "fan is loud" in two_hosts.trainctl("cluster").stdout

    two_hosts.trainctl("uncordon", "h1")

    job = two_hosts.submit(train__steps=5)
    assert two_hosts.wait_for_end(job).state_name == "SUCCEEDED"
    assert hosts_of(two_hosts.get(job)) == {"h1"}


def test_drain_moves_a_job_with_a_save_and_counts_no_restart(cluster, slow_hosts):
    for name in ("h1", "h2"):
        slow_hosts.start_worker(name, 2)
    job = cluster.submit(train__steps=250, **SLOW)
    cluster.wait_for_step(job, 10)
    (host,) = hosts_of(cluster.get(job))

    output = cluster.trainctl("drain", host).stdout
    wait_for_second_generation(cluster, slow_hosts, job)

    assert job in output
    view = cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED"
    assert hosts_of(view) == {"h1", "h2"} - {host}
    assert (view.job.generation, view.job.restarts) == (2, 0)
    assert [event.step.step for event in cluster.watch(job) if event.HasField("step")] == list(range(1, 251))
    assert host in cluster.trainctl("why", job).stdout


# One host uses shared memory. Two hosts use gloo if their numbers of ranks differ, else gloo and shared memory
# together.
@pytest.mark.slow
@pytest.mark.parametrize("slots", [(2, 1), (2, 2), pytest.param((3, 2), marks=pytest.mark.long)],
                         ids=lambda slots: f"{sum(slots)}_ranks")
def test_drain_from_one_host_to_two_leaves_all_losses_bit_equal(cluster, slow_hosts, slots):
    ranks = sum(slots)
    for name, count in (("h1", ranks), ("h2", slots[0]), ("h3", slots[1])):
        slow_hosts.start_worker(name, count)
    for name in ("h2", "h3"):
        cluster.trainctl("cordon", name)
    keys = {"train__steps": 150, "train__model": SLOW["train__model"],
            "train__batch": {"global": 2 * ranks, "micro": 2},
            "resources__ranks": ranks}
    slow_hosts.clear_faults()
    stayed = cluster.submit(cluster.folder / "stayed", **keys)
    assert cluster.wait_for_end(stayed).state_name == "SUCCEEDED"
    slow_hosts.slow_down()
    moved = cluster.submit(cluster.folder / "moved", **keys)
    cluster.wait_for_step(moved, 10)
    for name in ("h2", "h3"):
        cluster.trainctl("uncordon", name)

    cluster.trainctl("drain", "h1")
    wait_for_second_generation(cluster, slow_hosts, moved)

    view = cluster.wait_for_end(moved)
    assert (view.state_name, view.job.generation, hosts_of(view)) == ("SUCCEEDED", 2, {"h2", "h3"})
    losses = harness.metrics_steps(cluster.folder / "moved")
    assert len(losses) == 150
    assert losses == harness.metrics_steps(cluster.folder / "stayed")


def test_forget_removes_a_host_once_its_daemon_is_detached(two_hosts):
    refused = two_hosts.trainctl("forget", "h1", expect=None).stderr
    assert "host h1 cannot be forgotten: its daemon is attached from" in refused
    worker = next(program for program in two_hosts.programs if program.log.name.startswith("worker-h1"))
    worker.signal(signal.SIGTERM)
    worker.wait()
    harness.wait_until(lambda: two_hosts.trainctl("forget", "h1", "--reason", "sold", expect=None).returncode == 0,
                       "the lease of h1 has expired")

    hosts = harness.events(two_hosts.trainctl("cluster", "--json").stdout)
    assert [host["name"] for host in hosts] == ["h2"]
    assert "host h1 is forgotten: sold" in two_hosts.trainctl("events").stdout
    assert "no host h1" in two_hosts.trainctl("drain", "h1", expect=None).stderr


def test_restart_forms_a_new_group_and_why_shows_the_reason(cluster, slow_hosts):
    slow_hosts.start_worker("h1", 2)
    job = cluster.submit(train__steps=250, **SLOW)
    cluster.wait_for_step(job, 10)

    cluster.trainctl("restart", job, "--reason", "new kernel")
    wait_for_second_generation(cluster, slow_hosts, job)

    view = cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED"
    assert (view.job.generation, view.job.restarts) == (2, 0)
    why = cluster.trainctl("why", job).stdout
    assert "generation 2" in why and "new kernel" in why, why
    chain = object_of(cluster.trainctl("why", job, "--json"))["chain"]
    assert [line["state"] for line in chain if line["event"] == "state"][-1] == "SUCCEEDED"
    assert all(line["time_s"] > 0 for line in chain)


def test_pause_frees_the_slots_and_resume_continues_at_the_same_step(cluster, slow_hosts):
    slow_hosts.start_worker("h1", 2)
    job = cluster.submit(train__steps=250, **SLOW)
    cluster.wait_for_step(job, 10)

    cluster.trainctl("pause", job)
    cluster.wait_for_state(job, "PAUSED")
    slow_hosts.clear_faults()
    assert cluster.wait_for_end(cluster.submit(train__steps=5)).state_name == "SUCCEEDED"
    cluster.trainctl("resume", job)

    view = cluster.wait_for_end(job)
    assert (view.state_name, view.job.restarts) == ("SUCCEEDED", 0)
    assert [event.step.step for event in cluster.watch(job) if event.HasField("step")] == list(range(1, 251))


def test_the_parts_of_the_goodput_add_up_to_the_total(one_host):
    job = one_host.submit(train__steps=60, checkpoint__every_steps=20)
    one_host.wait_for_end(job)

    goodput = object_of(one_host.trainctl("goodput", job, "--json"))

    assert goodput["total_s"] > 0 and goodput["parts_s"]["train"] > 0
    assert sum(goodput["parts_s"].values()) == pytest.approx(goodput["total_s"], abs=0.01)
    assert set(goodput["parts_s"]) == {"queue", "start", "train", "save", "lost", "detect", "recover", "pause"}
    assert "sum" in one_host.trainctl("goodput", job).stdout
    assert object_of(one_host.trainctl("status", job, "--json"))["goodput"]["total_s"] > 0


def test_events_lists_those_of_a_job_or_of_the_cluster(two_hosts):
    job = two_hosts.submit(train__steps=5)
    two_hosts.wait_for_end(job)
    two_hosts.trainctl("cordon", "h2")

    of_job = harness.events(two_hosts.trainctl("events", "--job", job, "--follow", "--json").stdout)
    of_cluster = two_hosts.trainctl("events").stdout

    assert [line["state"] for line in of_job if line["event"] == "state"][-1] == "SUCCEEDED"
    assert job in of_cluster and "h2" in of_cluster


# (name of the row, arguments of trainctl, exit code, what the message must name)
BAD = [
    ("an unknown host", ["drain", "h9"], 2, "h9"),
    ("an unknown job", ["restart", "nosuchjob"], 2, "nosuchjob"),
    ("the decisions of an unknown job", ["why", "nosuchjob"], 2, "nosuchjob"),
    ("a resume of a job that is not paused", ["resume", "JOB"], 2, "JOB"),
    ("a restart of a job that has ended", ["restart", "JOB"], 2, "JOB"),
    ("a pause of a job that has ended", ["pause", "JOB"], 2, "JOB"),
]


def test_refused_requests_print_a_message_and_with_json_an_object(one_host):
    job = one_host.submit(train__steps=2)
    one_host.wait_for_end(job)
    for name, arguments, code, named in BAD:
        arguments = [job if argument == "JOB" else argument for argument in arguments]

        done = one_host.trainctl(*arguments, "--json", expect=code)

        error = object_of(done)
        assert error["event"] == "error" and error["exit_code"] == code, name
        assert (job if named == "JOB" else named) in error["text"], name
        assert done.stderr.startswith("trainctl: "), name


@pytest.mark.parametrize("verb", [["cluster"], ["list"], ["events"], ["why", "k3x7q2ab"], ["status", "k3x7q2ab"],
                                  ["cancel", "k3x7q2ab"], ["goodput", "k3x7q2ab"], ["pause", "k3x7q2ab"],
                                  ["drain", "h1"], ["doctor"], ["version"], ["logs", "k3x7q2ab"]],
                         ids=lambda verb: verb[0])
def test_an_unreachable_coordinator_gives_exit_code_3_and_a_json_object(cluster, verb):
    done = cluster.run_trainctl("--coordinator", "127.0.0.1:1", *verb, "--json", expect=3)

    error = json.loads(done.stdout.splitlines()[-1])
    assert (error["event"], error["exit_code"]) == ("error", 3)
    assert "127.0.0.1:1" in error["text"]


def test_a_run_that_fails_before_it_submits_ends_with_done(cluster):
    done = cluster.run_trainctl("run", "nowhere.yaml", "--json", expect=2)

    lines = harness.events(done.stdout)
    assert [line["event"] for line in lines] == ["error", "done"]
    assert lines[-1]["exit_code"] == 2 and lines[-1]["state"] is None and "nowhere.yaml" in lines[-1]["reason"]


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["status"], ["drain", "h1", "--frob"]], ids=str)
def test_command_line_errors_start_with_the_program_and_are_printed_once(cluster, arguments):
    done = cluster.run_trainctl(*arguments, expect=2)

    assert done.stderr.startswith("trainctl: "), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_run_does_not_report_a_missing_host_and_names_an_impossible_run_folder(cluster):
    text = cluster.run_trainctl("run", cluster.write_job(train__steps=3), "--json").stdout
    refused = cluster.run_trainctl("run", cluster.write_job(train__steps=3, checkpoint__dir="/proc/x"), expect=None)

    assert "no host is attached" not in text
    assert refused.returncode == 2, refused.stderr
    assert "checkpoint.dir" in refused.stderr and "/proc/x" in refused.stderr, refused.stderr


def test_submit_with_nothing_to_resume_is_refused_unless_a_fresh_start_is_allowed(one_host):
    job = one_host.write_job(name="fresh", train__steps=2)

    assert "nothing to resume" in one_host.trainctl("submit", job, "--resume", expect=2).stderr
    allowed = one_host.trainctl("submit", job, "--resume", "--allow-fresh-start")
    assert "starting from step 1" in allowed.stderr
    assert one_host.wait_for_end(allowed.stdout.strip()).state_name == "SUCCEEDED"


def test_a_job_runs_only_on_the_hosts_that_it_names(two_hosts):
    job = two_hosts.submit(train__steps=5, resources={"ranks": 2, "threads_per_rank": 1, "hosts": ["h2"]})

    assert two_hosts.wait_for_end(job).state_name == "SUCCEEDED"
    assert hosts_of(two_hosts.get(job)) == {"h2"}
