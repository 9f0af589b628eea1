"""A cluster of real processes on free ports, for tests.

    cluster = Cluster(tmp_path, stubs)
    cluster.start_coordinator()
    cluster.start_worker("h1", slots=2)
    job = cluster.submit(train__steps=20, resources__ranks=2)
    assert cluster.wait_for_end(job).state_name == "SUCCEEDED"

All files are in one temporary folder; `close` (called by the fixture) kills the remaining processes with SIGKILL. Tests
wait for conditions with `wait_until`, never for a fixed time. The programs are those in TRAINYARD_BIN, else in
build/bin.
"""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import socket
import subprocess
import time

import grpc
import yaml

import processes
import tokens

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TRAINYARD_BIN", ROOT / "build" / "bin"))
FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")
PORTS_BEGIN = 10_000
# Long enough to inject faults while it runs; the fixture `undisturbed` has its losses without faults.
LONG_JOB = {"train__steps": 1000, "checkpoint__every_steps": 50, "train__evaluate": {"every_steps": 500, "batches": 2}}


def wait_until(condition, what, seconds=60.0):
    """Calls `condition` until it returns a true value, and returns that. A failure names `what`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for: {what}; last answer {value!r}")
        time.sleep(0.02)


def stop_process(pid):
    """Sends SIGSTOP. Returns when the process is stopped, because its other threads run until the thread that takes the
    signal has been scheduled."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: processes.is_stopped(pid) or not processes.is_running(pid), f"process {pid} is stopped")


@functools.cache
def _ports():
    """The ports from which `free_port` chooses, in an endless order. They are below those that the kernel chooses for
    outgoing connections and for port 0, and each worker of pytest-xdist has others."""
    try:
        end = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        end = 32_768
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = list(range(PORTS_BEGIN, max(end, PORTS_BEGIN + 10_000)))[worker::workers]
    begin = random.randrange(len(ports))
    return itertools.cycle(ports[begin:] + ports[:begin])


def free_port():
    """A port that stays free until the caller's program listens on it, and while that program is restarted: neither the
    kernel nor another test chooses it."""
    for port in _ports():
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:  # another program listens on it
                continue
        return port


def events(text):
    """The objects in a --json output, one per line."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def job_id_of(text):
    """The id of the job in the --json output of `trainctl submit` or `run`."""
    return next(line["id"] for line in events(text) if line.get("event") == "job")


def steps_of(lines):
    return {line["step"]: line["loss"] for line in lines if line.get("event", "step") == "step" and "loss" in line}


def metrics_steps(run_folder, running=False):
    """{step: loss} of a run's metrics.jsonl; fails if a step occurs twice. `running`: the last line may be unfinished,
    and is then left out."""
    losses = {}
    text = (pathlib.Path(run_folder) / "metrics.jsonl").read_text()
    for line in text[:text.rfind("\n") + 1 if running else None].splitlines():
        record = json.loads(line)
        if record.get("event", "step") != "step" or "loss" not in record:
            continue
        assert record["step"] not in losses, f"step {record['step']} occurs twice in metrics.jsonl"
        losses[record["step"]] = record["loss"]
    return losses


def with_keys(document, keys):
    """Sets dotted paths, with '__' for the dot, in a job, and returns it."""
    for path, value in keys.items():
        *parents, leaf = path.split("__")
        node = document
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return document


def job_document(text, **keys):
    """A small job. `keys` are dotted paths with '__' for the dot: train__steps=50."""
    document = {
        "name": "small",
        "train": {
            "model": {"layers": 1, "heads": 2, "width": 16, "context": 16},
            "data": {"text": [str(text)], "validation": 0.1},
            "batch": {"global": 4, "micro": 2},
            "optimizer": {"lr": 1.0e-2},
            "steps": 20,
        },
        "resources": {"ranks": 2, "threads_per_rank": 1, "device": "cpu"},
    }
    return with_keys(document, keys)


def write_job_file(path, document):
    """Writes a job file and returns its path. A value of a job file must not continue on the next line."""
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=10_000))
    return path


@dataclasses.dataclass
class Program:
    """A started program and the file of its output."""

    popen: subprocess.Popen
    log: pathlib.Path
    address: str = ""

    @property
    def pid(self):
        return self.popen.pid

    def output(self):
        return self.log.read_text(errors="replace")

    def json_lines(self):
        """The objects of its --json output so far, without other lines. The last line may be unfinished."""
        complete = self.output().rpartition("\n")[0].splitlines()
        return events("\n".join(line for line in complete if line.startswith("{")))

    def steps(self):
        """The steps that its --json output has reported so far, in order."""
        return [line["step"] for line in self.json_lines() if line["event"] == "step"]

    def wait_for_steps(self, count):
        def enough():
            assert self.alive() or len(self.steps()) >= count, f"{self.log.name} ended early:\n{self.output()}"
            return len(self.steps()) >= count

        wait_until(enough, f"{count} steps are reported")

    def alive(self):
        return self.popen.poll() is None

    def wait(self, seconds=60.0):
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            message = f"{self.log.name} did not end within {seconds} s; its output:\n{self.output()}"
            raise AssertionError(message) from None

    def signal(self, number):
        """Sends a signal. Returns from SIGSTOP when the program is stopped."""
        if number == signal.SIGSTOP and self.alive():
            stop_process(self.pid)
        else:
            self.popen.send_signal(number)


class Cluster:
    def __init__(self, folder, stubs):
        self.folder = pathlib.Path(folder)
        self.stubs = stubs
        self.programs = []
        self.coordinator = None
        self._channel = None
        self.text = self.folder / "text.txt"
        words = "the rank waits for the mesh and the step follows the loss while the clock of the store runs".split()
        self.text.write_text(" ".join(words[(i * i + i // 7) % len(words)] for i in range(6000)))

    # Programs

    def start(self, name, command, cwd=None, env=None, stdin=subprocess.DEVNULL):
        log = self.folder / f"{name}-{len(self.programs)}.log"
        with log.open("wb") as out:
            popen = subprocess.Popen([str(part) for part in command], stdout=out, stderr=subprocess.STDOUT, stdin=stdin,
                                     cwd=cwd or self.folder, env={**os.environ, **(env or {})}, start_new_session=True)
        program = Program(popen, log)
        self.programs.append(program)
        return program

    def start_coordinator(self, *flags, port=None, state=None, prefix=()):
        port = port or free_port()
        self.metrics_port = free_port()
        metrics = [] if "--metrics" in flags else ["--metrics", f"127.0.0.1:{self.metrics_port}"]
        program = self.start("coordinator", [*prefix, BIN / "trainyard-coordinator", "--listen", f"127.0.0.1:{port}",
                                             "--state",
                                             state or self.folder / "coordinator", *metrics, *flags])
        program.address = f"127.0.0.1:{port}"
        self.coordinator = program
        self._channel = tokens.dial(program.address)
        self.jobs = self.stubs.service_grpc.JobServiceStub(self._channel)
        self._wait_for(program, lambda: self._server_info() is not None, "the coordinator answers")
        return program

    def start_worker(self, name, slots=2, *flags, state=None, prefix=(), binary=BIN / "trainyard-worker"):
        before = self._incarnation_of(name)
        program = self.start(f"worker-{name}", [*prefix, binary, "--coordinator", self.coordinator.address,
                                                "--slots", slots, "--name", name, "--state",
                                                state or self.folder / f"worker-{name}", *flags])
        # The coordinator may still list a daemon that was killed.
        self._wait_for(program, lambda: self._incarnation_of(name) not in (0, before), f"worker {name} attaches")
        return program

    def _incarnation_of(self, name):
        """The incarnation of the daemon that is attached under this name; 0: none is."""
        def listed():
            return self._answer_of(self.jobs.ListHosts, self.stubs.service.ListHostsRequest())

        hosts = wait_until(listed, "the coordinator lists its hosts").hosts
        return next((host.incarnation for host in hosts if host.name == name and host.attached and host.reachable), 0)

    def _wait_for(self, program, condition, what):
        def ready():
            assert program.alive(), f"{what}: the program ended with {program.popen.returncode}\n{program.output()}"
            return condition()

        try:
            wait_until(ready, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{program.output()}") from None

    def server_info(self):
        """What the coordinator says about itself and its hosts. Waits for the answer, which is late on a busy
        machine."""
        return wait_until(self._server_info, "the coordinator answers")

    def _server_info(self):
        return self._answer_of(self.jobs.GetServerInfo, self.stubs.service.GetServerInfoRequest())

    @staticmethod
    def _answer_of(method, request):
        """None: there is no answer yet; on a busy machine it is late."""
        try:
            return method(request, timeout=2)
        except grpc.RpcError:
            return None

    # trainctl

    def trainctl(self, *arguments, timeout=240, cwd=None, expect=0):
        """Runs trainctl against this cluster until it exits. `expect` None: any exit code."""
        prefix = ["--coordinator", self.coordinator.address] if self.coordinator else []
        return self.run_trainctl(*prefix, *arguments, timeout=timeout, cwd=cwd, expect=expect)

    def run_trainctl(self, *arguments, timeout=240, cwd=None, expect=0):
        command = [str(BIN / "trainctl"), *map(str, arguments)]
        popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                 cwd=cwd or self.folder, stdin=subprocess.DEVNULL)
        try:
            out, err = popen.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            popen.kill()
            out, err = popen.communicate()
            raise AssertionError(f"{shlex.join(command)} did not end within {timeout} s\n{out}\n{err}") from None
        if expect is not None:
            assert popen.returncode == expect, (
                f"{shlex.join(command)} ended with {popen.returncode}, not {expect}\n{out}\n{err}")
        return subprocess.CompletedProcess(command, popen.returncode, out, err)

    def start_trainctl(self, *arguments, cwd=None):
        return self.start("trainctl", [BIN / "trainctl", *arguments], cwd=cwd)

    def write_job(self, file_name="job.yaml", **keys):
        return write_job_file(self.folder / file_name, job_document(self.text, **keys))

    # Jobs

    def submit(self, run_folder=None, flags=(), **keys):
        """Submits a small job with these keys and returns its id."""
        if run_folder:
            keys["checkpoint__dir"] = str(run_folder)
        return self.submit_document(job_document(self.text, **keys), *flags)

    def submit_document(self, document, *flags):
        """Submits this job and returns its id."""
        return self.submit_file(write_job_file(self.folder / f"job-{time.monotonic_ns()}.yaml", document), *flags)

    def submit_file(self, path, *flags):
        """Submits the job of this file and returns its id."""
        return job_id_of(self.trainctl("submit", path, "--json", *flags).stdout)

    def get(self, job_id):
        job = self.jobs.Get(self.stubs.service.GetRequest(job_id=job_id), timeout=60)
        return JobView(job, self.stubs)

    def wait_for_state(self, job_id, *states, seconds=240.0):
        def reached():
            view = self.get(job_id)
            assert view.state_name in states or view.state_name not in FINAL_STATES, (
                f"job {job_id} is {view.state_name} ({view.job.reason}), not {states}\n{self.logs_of(job_id)}")
            return view if view.state_name in states else None

        return wait_until(reached, f"job {job_id} is {' or '.join(states)}", seconds)

    def wait_for_end(self, job_id, seconds=240.0):
        return self.wait_for_state(job_id, *FINAL_STATES, seconds=seconds)

    def wait_for_step(self, job_id, step, seconds=240.0):
        def reached():
            view = self.get(job_id)
            assert view.state_name not in FINAL_STATES or view.job.last_step >= step, (
                f"job {job_id} ended at step {view.job.last_step} as {view.state_name}: {view.job.reason}")
            return view if view.job.last_step >= step else None

        return wait_until(reached, f"job {job_id} reaches step {step}", seconds)

    def watch(self, job_id, timeout=240):
        """Every event of the job until it ends."""
        return list(self.jobs.Watch(self.stubs.service.WatchRequest(job_id=job_id), timeout=timeout))

    def logs_of(self, job_id):
        done = self.trainctl("logs", job_id, "--all-ranks", "--tail", "30", expect=None)
        return done.stdout[-4000:] + done.stderr[-1000:]

    # End

    def close(self):
        """Kills the started programs with SIGKILL, so that no daemon restarts a trainer, and then their descendants."""
        if self._channel:
            self._channel.close()
        for program in self.programs:
            if program.alive():
                program.signal(signal.SIGKILL)
            program.popen.wait(60)
        processes.kill_descendants()
        wait_until(lambda: not processes.descendants(), "every process of the test has ended")
        remove_memory_folders(self.folder)
        if self.coordinator:
            tokens.path_of(self.coordinator.address).unlink(missing_ok=True)


class JobView:
    """A Job message with its state as a string."""

    def __init__(self, job, stubs):
        self.job = job
        self.state_name = stubs.service.JobState.Name(job.state).removeprefix("JOB_STATE_")

    def pid_of(self, rank):
        """None: the rank has not reported its pid. Never 0, which would mean the caller's process group to os.kill."""
        return next((status.pid for status in self.job.ranks if status.rank == rank), 0) or None


def state_of(memory_folder):
    """The state folder of the daemon that owns this folder in shared memory; folders of other programs give ""."""
    try:
        return os.fsdecode((memory_folder / "daemon").read_bytes().split(b"\n")[1])
    except (OSError, IndexError):  # it is being created or removed, or does not belong to a daemon
        return ""


def memory_folders(below):
    """Folders in shared memory of daemons whose state folder is below this path."""
    return [folder for folder in pathlib.Path("/dev/shm").glob(f"trainyard-{os.getuid()}-*")
            if state_of(folder).startswith(f"{below}/")]


def remove_memory_folders(below):
    """REQUIRES: their daemons have exited."""
    for folder in memory_folders(below):
        shutil.rmtree(folder)


def trainers():
    """Running trainers below this test process: {pid: command line}."""
    return {pid: line for pid, line in processes.descendants().items()
            if processes.name_of(pid).startswith("trainyard-trai")}


def assert_nothing_runs(seconds=30.0):
    """REQUIRES: every process has been requested to exit."""
    try:
        wait_until(lambda: not processes.descendants(), "no process is left", seconds)
    except AssertionError:
        raise AssertionError(f"still running after {seconds} s: {processes.descendants()}") from None
