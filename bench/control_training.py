"""Rows of `./dev bench control-plane` with real trainers: the CPU cost of the control plane, and how fast it detects
faults. The model is lab-10m on two ranks of one thread, with daemons on this machine."""

import json
import os
import pathlib
import re
import signal
import statistics
import sys
import tempfile
import time

import sides

ROOT = sides.ROOT
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
sys.path.insert(0, str(ROOT / "tests" / "cluster" / "faults"))

WARM_STEPS = 5
# The ports for metrics and health are not needed here.
QUIET = ("--metrics", "", "--health", "")
# Prefixes of the names of the trainer's link threads: its own and those of gRPC.
LINK_THREADS = ("link", "grpc", "default-executo", "resolver-execut", "event_engine", "nexting_thread", "timer")


class MeasurementFailed(Exception):
    pass


class _Stubs:
    made = None

    @classmethod
    def get(cls):
        if cls.made is None:
            import stubs

            cls.folder = tempfile.TemporaryDirectory(prefix="trainyard-stubs-")
            cls.made = stubs.make(cls.folder.name)
        return cls.made


def small_cluster(folder):
    import harness
    import processes

    processes.start_reaper()
    return harness.Cluster(folder, _Stubs.get())


def job_keys(folder, sequences, context=256, steps=100_000):
    """lab-10m with this batch, without saves and evaluations."""
    return dict(name="bench", train__model__layers=6, train__model__heads=6, train__model__width=384,
                train__model__context=context, train__data__text=[str(sides.text_file(folder))],
                train__batch__global=sequences, train__batch__micro=max(1, sequences // 2), train__steps=steps,
                resources__ranks=2, resources__threads_per_rank=1, checkpoint__every_steps=0,
                checkpoint__dir=str(pathlib.Path(folder) / "run"))


def steps_in_metrics(folder):
    path = pathlib.Path(folder) / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [record["step_s"] for record in map(json.loads, lines) if "step_s" in record]


def wait_for_steps(folder, count, seconds=300.0):
    import harness

    return harness.wait_until(lambda: len(steps_in_metrics(folder)) >= count, f"{count} steps are done", seconds)


# ---- CPU ----


def threads_cpu_s(pid):
    """[(name, seconds of CPU)] of the process's threads."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
            found.append(((task / "comm").read_text().strip(), seconds))
        except OSError:
            continue  # the thread has ended meanwhile
    return found


def cpu_s(pid):
    """Seconds of CPU of the process, in nanosecond resolution: the clock of clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def cpu_of_both_s(control, trainers):
    """(CPU seconds of the control plane and of the trainers' link threads, those of the trainers' other threads)"""
    control_s, trainers_s = sum(cpu_s(pid) for pid in control), 0.0
    for pid in trainers:
        link = sum(seconds for name, seconds in threads_cpu_s(pid) if name.startswith(LINK_THREADS))
        control_s += link
        trainers_s += cpu_s(pid) - link
    return control_s, trainers_s


def measure_overhead(options):
    import harness
    import processes

    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        cluster = small_cluster(folder)
        try:
            coordinator = cluster.start_coordinator()
            worker = cluster.start_worker("h1", 2, *QUIET)
            job = cluster.submit(**job_keys(folder, 16))
            wait_for_steps(folder, 2)
            shims = [pid for pid in processes.descendants() if processes.name_of(pid).startswith("trainyard-shim")]
            trainers = list(harness.trainers())
            if len(shims) != 2 or len(trainers) != 2:
                raise MeasurementFailed(f"expected two shims and two trainers, found {shims} and {trainers}")
            control = [coordinator.pid, worker.pid, *shims]
            before, began = cpu_of_both_s(control, trainers), time.monotonic()
            time.sleep(options.train_seconds)
            after, took = cpu_of_both_s(control, trainers), time.monotonic() - began
            cluster.trainctl("cancel", job)
            cluster.wait_for_end(job)
        finally:
            cluster.close()
    control_s, trainers_s = after[0] - before[0], after[1] - before[1]
    return {"percent": 100 * control_s / trainers_s, "control_s": control_s, "trainers_s": trainers_s, "seconds": took}


# ---- stopped daemons ----


def measure_stopped(options, who):
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        cluster = small_cluster(folder)
        try:
            programs = {"coordinator": cluster.start_coordinator(), "daemon": cluster.start_worker("h1", 2, *QUIET)}
            job = cluster.submit(**job_keys(folder, 4))
            wait_for_steps(folder, 3 * WARM_STEPS)
            programs[who].signal(signal.SIGSTOP)
            first = len(steps_in_metrics(folder))
            time.sleep(options.stop_seconds)
            last = len(steps_in_metrics(folder))
            programs[who].signal(signal.SIGCONT)
            wait_for_steps(folder, last + WARM_STEPS)
            steps = steps_in_metrics(folder)
            view = cluster.get(job)
            if view.state_name != "RUNNING" or view.job.generation != 1:
                raise MeasurementFailed(f"the job is {view.state_name} in generation {view.job.generation}: "
                                        f"{view.job.reason}")
            cluster.trainctl("cancel", job)
            cluster.wait_for_end(job)
        finally:
            cluster.close()
    if last - first < 2:
        raise MeasurementFailed(f"only {last - first} steps were done while the {who} was stopped")
    median_step = statistics.median(steps[WARM_STEPS:first] + steps[last:])
    return {"ratio": max(steps[first:last]) / median_step, "median_step_s": median_step, "steps": last - first,
            "longest_undisturbed_step_s": max(steps[WARM_STEPS:first] + steps[last:]),
            "stopped_s": options.stop_seconds}


# ---- hangs and cuts ----

# The rules of the notices that count as the decision. The usual one is "hang". Ranks that share memory detect a skipped
# collective on their own and report it as broken; then the coordinator decides by one of the other two.
DECISION_RULES = ("hang", "restart", "give_up")
NAMES_RANK_1 = r"^rank 1 on h1 (is|was|has)|; rank 1 is at fault"
# Batch and context by the approximate seconds of a step.
SIZES = {0.1: dict(sequences=2, context=64), 2.0: dict(sequences=16, context=256)}


def measure_hang(how, step_s):
    """Measures the time from the fault to the coordinator's decision, which must name the rank."""
    import harness
    import faulty_trainers

    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        cluster = small_cluster(folder)
        try:
            host = faulty_trainers.FaultyHost(cluster, pathlib.Path(folder))
            host.start()
            job = cluster.submit(**job_keys(folder, **SIZES[step_s]))
            wait_for_steps(folder, 3 * WARM_STEPS)
            began = time.monotonic()
            if how == "stop":
                os.kill(cluster.get(job).pid_of(1), signal.SIGSTOP)
            else:
                host.set_fault(1, how)

            def decided():
                request = cluster.stubs.service.ListEventsRequest(job_id=job)
                events = cluster.jobs.ListEvents(request, timeout=5).events
                return next((event.notice for event in events if event.notice.rule in DECISION_RULES), None)

            notice = harness.wait_until(decided, "the rank at fault is named", 90)
            took = time.monotonic() - began
            if not re.search(NAMES_RANK_1, notice.text):
                raise MeasurementFailed(f"another rank was named: {notice.text}")
            step = statistics.median(steps_in_metrics(folder)[WARM_STEPS:])
            cluster.trainctl("cancel", job)
            cluster.wait_for_end(job)
        finally:
            cluster.close()
    return {"less_steps_s": max(0.0, took - 2 * step), "whole_s": took, "median_step_s": step}


def measure_host_cut(options):
    """Measures the time from the disconnection of a host until its job is RECOVERING. Two hosts, each in its own
    network namespace, have one rank each."""
    del options
    import net_cluster
    import processes

    processes.start_reaper()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        import harness

        keys = job_keys(folder, **SIZES[0.1])
        keys.pop("checkpoint__dir")
        document = harness.job_document(keys.pop("train__data__text")[0], **keys)
        with net_cluster.NetCluster(pathlib.Path(folder) / "net", f"bench{os.getpid()}") as cluster:
            cluster.start()
            cluster.submit(document)
            warm = 4 * WARM_STEPS
            cluster.watcher.wait_for(lambda line: line["event"] == "step" and line["step"] >= warm, f"step {warm}", 120)
            lines = (cluster.run_folder / "metrics.jsonl").read_text().splitlines()
            step = statistics.median(record["step_s"] for record in map(json.loads, lines) if "step_s" in record)
            cluster.network.host("b").link(up=False)
            began = time.monotonic()
            cluster.watcher.wait_for(lambda line: line["event"] == "state" and line["state"] == "RECOVERING",
                                     "the job is RECOVERING", 60)
            took = time.monotonic() - began
    return {"less_steps_s": max(0.0, took - 2 * step), "whole_s": took, "median_step_s": step}
