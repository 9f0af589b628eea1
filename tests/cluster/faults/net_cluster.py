"""A coordinator and two daemons in three network namespaces, one job, and a watcher of all its events.

    with NetCluster(folder, "cell3") as cluster:
        cluster.start()
        cluster.submit(job_document(...))
        cluster.wait_for_phase("training")
        cluster.programs["b"].signal(signal.SIGKILL)
        ...
        cluster.watcher.wait_for_end(60)

Phases are recognised from outside: by the watcher's events and by files. Every wait has a limit and reports what it
waited for. Not thread-safe; several clusters may run concurrently.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import harness
import network

PORT = 7070
PROXY_PORT = 7999
DELAY_MS = 60
STATE_BYTES = 8 << 20
HERE = pathlib.Path(__file__).parent


def poll(condition, what, seconds):
    """Like harness.wait_until, for conditions that hold for only a few milliseconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
        time.sleep(0.0005)


class Watcher:
    """`trainctl watch --json` and the lines it has printed so far."""

    def __init__(self, command, log):
        self.lines = []
        self._changed = threading.Condition()
        self._ended = False
        self._log = log
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log.open("wb"), stdin=subprocess.DEVNULL)
        threading.Thread(target=self._read, name="watcher", daemon=True).start()

    def _read(self):
        for line in self.popen.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, condition, what, seconds=60.0):
        """The first line that meets `condition`; fails if the watcher ends or the time runs out first."""
        seen, deadline = 0, time.monotonic() + seconds
        with self._changed:
            while True:
                for line in self.lines[seen:]:
                    if condition(line):
                        return line
                seen = len(self.lines)
                left = deadline - time.monotonic()
                assert not self._ended, f"the watcher ended before {what}; {self._tail()}"
                assert left > 0, f"waited {seconds} s for: {what}; {self._tail()}"
                self._changed.wait(left)

    def wait_for_end(self, seconds):
        """Returns the final `done` line after the program has exited."""
        done = self.wait_for(lambda line: line["event"] == "done", "the end of the job", seconds)
        self.popen.wait(60)
        return done

    def lines_of(self, kind):
        with self._changed:
            return [line for line in self.lines if line["event"] == kind]

    def _tail(self):
        rest = [line for line in self.lines if line["event"] != "step"][-12:]
        steps = [line["step"] for line in self.lines if line["event"] == "step"][-1:]
        return f"newest step {steps}, last lines:\n" + "\n".join(map(json.dumps, rest)) + self._log.read_text()[-1000:]


class NetCluster:
    def __init__(self, folder, name, small_disks=(), delayed=None, slots=1):
        """`slots`: of each daemon. `small_disks`: the programs ("c", "a", "b") whose state is on a disk of a few MB.
        `delayed`: the traffic that goes through proxies that can delay it: None, "control" or "all"."""
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_folder = self.folder / "run"
        self.network = network.Network(name, ["c", "a", "b"])
        self.programs = {}
        self.logs = []
        self.proxies = []
        self.watcher = None
        self.job = None
        self._slots = slots
        self._small_disks = small_disks
        self._delayed = delayed
        self._mounts = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Programs

    def _start(self, host, name, command, **options):
        log = self.folder / f"{name}-{len(self.logs)}.log"
        with log.open("wb") as out:
            popen = subprocess.Popen([*self.network.host(host).prefix, *map(str, command)], stdout=out,
                                     stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.folder,
                                     start_new_session=True, **options)
        program = harness.Program(popen, log)
        self.logs.append(log)
        return program

    def start(self):
        for name in self._small_disks:
            self._mount(name)
        if self._delayed:
            self._start_proxies()
        self.start_program("c")
        for name in ("a", "b"):
            self.start_program(name)
        harness.wait_until(lambda: self._server_info().get("hosts") == 2, "both daemons attach")

    def start_program(self, name):
        """Starts the coordinator ("c") or the daemon of host "a" or "b"; after it has ended, restarts it with the same
        state."""
        if name == "c":
            command = [harness.BIN / "trainyard-coordinator", "--listen", f"0.0.0.0:{PORT}", "--metrics", "",
                       "--allow-plaintext", "--state", self.state_of("c")]
        else:
            command = [harness.BIN / "trainyard-worker", "--coordinator", f"{self.network.host('c').address}:{PORT}",
                       "--allow-plaintext", "--slots", self._slots, "--name", name, "--state", self.state_of(name)]
        self.programs[name] = self._start(name, name, command)

    def kill_host(self, name, cut_first=False):
        """Ends all processes of the host at once, and its network. `cut_first`: as in a power failure, no peer is
        notified of the end of its connections."""
        host = self.network.host(name)
        if cut_first:
            host.link(up=False)
        for pid in host.pids():
            os.kill(pid, signal.SIGKILL)
        self.programs[name].popen.wait(60)
        if not cut_first:
            host.link(up=False)

    def state_of(self, name):
        return self.folder / f"state-{name}"

    def _mount(self, name):
        self.state_of(name).mkdir()
        network.run("mount", "-t", "tmpfs", "-o", f"size={STATE_BYTES}", "tmpfs", self.state_of(name))
        self._mounts.append(self.state_of(name))

    def _start_proxies(self):
        for name in ("a", "b"):
            host = self.network.host(name)
            proxy = self._start(name, f"proxy-{name}", [sys.executable, HERE / "delay_proxy.py", PROXY_PORT, DELAY_MS])
            harness.wait_until(lambda: "listening" in proxy.output(), "the proxy listens")
            self.proxies.append(proxy)
            host.redirect(PROXY_PORT, "-d", self.network.host("c").address, "--dport", PORT)
            if self._delayed == "all":
                host.redirect(PROXY_PORT, "-d", self.network.host("b" if name == "a" else "a").address)

    def _server_info(self):
        done = self.trainctl("version", "--json", expect=None)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return next((line["coordinator"] for line in lines if isinstance(line.get("coordinator"), dict)), {})

    def shim(self, host):
        """The pid of the shim on this host; waits for it."""
        def found():
            return next((pid for pid, name in self.network.host(host).pids().items() if name == "trainyard-shim"), None)

        return harness.wait_until(found, f"a shim runs on {host}")

    # trainctl, always on the coordinator's host

    def _trainctl_command(self, *arguments):
        return [*self.network.host("c").prefix, str(harness.BIN / "trainctl"), "--coordinator", f"127.0.0.1:{PORT}",
                *map(str, arguments)]

    def trainctl(self, *arguments, timeout=30, expect=0):
        done = subprocess.run(self._trainctl_command(*arguments), capture_output=True, text=True, timeout=timeout,
                              cwd=self.folder)
        assert expect is None or done.returncode == expect, (
            f"trainctl {arguments}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def start_trainctl(self, *arguments):
        return self._start("c", arguments[0], self._trainctl_command(*arguments))

    def submit(self, document):
        """Submits the job into this cluster's run folder and starts its watcher."""
        document = {**document, "checkpoint": {**document.get("checkpoint", {}), "dir": str(self.run_folder)}}
        path = harness.write_job_file(self.folder / "job.yaml", document)
        self.job = harness.job_id_of(self.trainctl("submit", path, "--json").stdout)
        self.steps = document["train"]["steps"]
        self.watcher = Watcher(self._trainctl_command("watch", self.job, "--json"), self.folder / "watch.log")
        return self.job

    # Observations

    def wait_for_phase(self, phase):
        """Returns as soon as the job is seen in `phase`: forming, first_step, training, saving or finishing."""
        if phase == "forming":
            self._wait_for_state("PLACED", "STARTING")
        elif phase == "first_step":
            self._wait_for_state("RUNNING")
        elif phase == "training":
            self._wait_for_step(self.steps // 4)
        elif phase == "saving":
            self._wait_for_step(self.steps // 4)
            # A save of a few milliseconds may be missed on a busy machine; then the fault comes right after it.
            saved = len(self.watcher.lines_of("checkpoint"))
            poll(lambda: self._save_is_under_way() or len(self.watcher.lines_of("checkpoint")) > saved,
                 "a save is under way", 60)
        elif phase == "finishing":
            self._wait_for_step(self.steps)
        else:
            raise ValueError(phase)

    def _wait_for_state(self, *states):
        self.watcher.wait_for(lambda line: line["event"] == "state" and line["state"] in states, f"state {states}")

    def _wait_for_step(self, step):
        self.watcher.wait_for(lambda line: line["event"] == "step" and line["step"] >= step, f"step {step}")

    def _save_is_under_way(self):
        return any(name.endswith(".partial") for name in os.listdir(self.run_folder))

    def leftovers(self):
        """{pid: name} of processes on the hosts other than the daemons and proxies."""
        started = {program.pid for program in [*self.programs.values(), *self.proxies]}
        found = {**self.network.host("a").pids(), **self.network.host("b").pids()}
        return {pid: name for pid, name in found.items() if pid not in started}

    def explanation(self):
        """The explanation that the operator gets: `trainctl why`."""
        return self.trainctl("why", self.job).stdout

    def all_logs(self):
        """All the logs, for a test that failed."""
        parts = [f"--- {log.name}\n{log.read_text(errors='replace')[-6000:]}" for log in self.logs]
        if self.watcher:
            parts.append("--- watcher\n" + "\n".join(json.dumps(line) for line in self.watcher.lines
                                                     if line["event"] != "step")[-6000:])
        return "\n".join(parts)

    # End

    def close(self):
        if self.watcher:
            self.watcher.popen.kill()
            self.watcher.popen.wait(60)
        for program in self.programs.values():
            if program.alive():
                program.signal(signal.SIGKILL)
        self.network.close()
        for program in [*self.programs.values(), *self.proxies]:
            program.popen.wait(60)
        for mount in self._mounts:
            subprocess.run(["umount", "--lazy", str(mount)], capture_output=True)
        harness.remove_memory_folders(self.folder)
