"""A job whose processes are killed repeatedly at named points of its saves, and which recovers each time.

    loop = FaultLoop(cluster)
    loop.start()                       # a coordinator and two daemons with a rank each
    job = loop.submit(faults, ...)
    for fault in loop.carry_out():
        ...                            # after each kill

A fault is a point at which a rank waits (docs/fault-points.md) and a victim that is killed while the rank waits.
Trainers read their rules when they start, so the rules of a generation are written before it starts. The rules contain
some faults that leave the trainers running, and one that kills trainers.
"""

import dataclasses
import itertools
import os
import pathlib
import signal

import grpc

import harness
import processes

# Victims whose kill ends trainers, and those whose kill leaves both trainers running.
TRAINERS_DIE = ("self", "other", "shim", "host", "all")
TRAINERS_LIVE = ("daemon", "coordinator")
FAULT_NUMBERS = itertools.count(1)
# At most this many TRAINERS_LIVE faults are armed in a generation, in addition to one of TRAINERS_DIE.
TRAINERS_LIVE_MAX = 2
HOSTS = ("h1", "h2")


@dataclasses.dataclass
class Fault:
    point: str
    rank: int  # the rank that waits at the point
    victim: str  # of TRAINERS_DIE or TRAINERS_LIVE
    nth: int  # the rank waits when it passes the point for the nth time
    # Number and attempt make the names of a fault's files unique.
    number: int = dataclasses.field(default_factory=lambda: next(FAULT_NUMBERS))
    attempt: int = 0

    def __str__(self):
        return f"kill of {self.victim} when rank {self.rank} is at {self.point}, pass {self.nth}"


class FaultLoop:
    def __init__(self, cluster):
        self.cluster = cluster
        self.folder = cluster.folder / "faults"
        self.folder.mkdir()
        self.rules = self.folder / "rules"
        self.port = harness.free_port()
        self.daemons = {}
        self.job = None

    def start(self):
        self.write_rules([])
        os.environ["TRAINYARD_FAULT_POINTS"] = f"@{self.rules}"
        try:
            self.cluster.start_coordinator(port=self.port)
            for name in HOSTS:
                self.daemons[name] = self.cluster.start_worker(name, slots=1)
        finally:
            del os.environ["TRAINYARD_FAULT_POINTS"]

    def submit(self, faults, **keys):
        """Submits the job; the rules of its first generation are written before it starts."""
        self.waiting = list(faults)
        self.armed = self.arm(self.waiting)
        self.job = self.cluster.submit(**keys)
        return self.job

    # Rules

    def gate(self, fault):
        """The path of a file: once it exists, the process at this fault's point continues."""
        return self.folder / f"{fault.number}.{fault.attempt}"

    def write_rules(self, faults):
        lines = []
        for fault in faults:
            gate = self.gate(fault)
            lines.append(f"rank={fault.rank},point={fault.point},nth={fault.nth},once={gate}.once,do=wait:{gate}")
        partial = self.rules.with_suffix(".partial")
        partial.write_text("\n".join(lines))
        partial.replace(self.rules)

    def pid_at(self, fault):
        """The process that waits at this fault's point; None: no process has reached it yet."""
        try:
            return int((self.folder / (self.gate(fault).name + ".reached")).read_text() or 0)
        except FileNotFoundError:
            return None

    # Processes

    def trainer(self, rank):
        return next((pid for pid, line in harness.trainers().items() if f"--rank {rank} " in line + " "), None)

    def kill_pid(self, pid):
        if pid:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def shim_of(self, pid):
        stat = processes._stat(pid) if pid else None
        return stat[1] if stat and processes.name_of(stat[1]).startswith("trainyard-shim") else None

    def kill_program(self, program):
        program.signal(signal.SIGKILL)
        program.wait()

    def kill(self, fault, pid):
        other, host = self.trainer(1 - fault.rank), self.host_of(pid)
        if fault.victim in ("self", "host", "all"):
            self.kill_pid(self.shim_of(pid) if fault.victim != "self" else None)
            self.kill_pid(pid)
        if fault.victim in ("other", "all"):
            self.kill_pid(self.shim_of(other) if fault.victim == "all" else None)
            self.kill_pid(other)
        if fault.victim == "shim":
            self.kill_pid(self.shim_of(pid))
        for name in {"daemon": [host], "host": [host], "all": HOSTS}.get(fault.victim, ()):
            self.kill_program(self.daemons[name])
        if fault.victim in ("coordinator", "all"):
            self.kill_program(self.cluster.coordinator)

    def host_of(self, pid):
        """The host of a trainer, from the daemon's state folder in its environment."""
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        return next(name for name in HOSTS if f"worker-{name}/" in environment)

    def restart_dead_programs(self):
        """Restarts the coordinator and daemons that have been killed."""
        os.environ["TRAINYARD_FAULT_POINTS"] = f"@{self.rules}"
        try:
            address = self.cluster.coordinator.address
            if not self.cluster.coordinator.alive():
                self.cluster.coordinator = self.cluster.start(
                    "coordinator", [harness.BIN / "trainyard-coordinator", "--listen", address, "--metrics", "",
                                    "--state",
                                    self.cluster.folder / "coordinator"])
                self.cluster.coordinator.address = address
            for name, program in self.daemons.items():
                if not program.alive():
                    self.daemons[name] = self.cluster.start(
                        f"worker-{name}", [harness.BIN / "trainyard-worker", "--coordinator", address, "--slots", 1,
                                           "--name",
                                           name, "--state", self.cluster.folder / f"worker-{name}"])
        finally:
            del os.environ["TRAINYARD_FAULT_POINTS"]

    # The loop

    def carry_out(self, seconds=120.0):
        """Injects all faults, in any order; yields each fault after its victims were killed and killed programs were
        restarted."""
        waiting, armed = self.waiting, self.armed
        while armed:
            fault, pid = harness.wait_until(lambda: self.reached(armed),
                                            f"one of {[str(each) for each in armed]}; rules "
                                            f"{self.rules.read_text()!r}", seconds)
            armed.remove(fault)
            if not processes.is_running(pid):  # another fault killed it first: this fault is repeated
                fault.attempt += 1
                waiting.insert(0, fault)
                self.gate(fault).touch()
                if not any(each.victim in TRAINERS_DIE for each in armed):
                    armed = self.arm(waiting, armed)
                continue
            if fault.victim in TRAINERS_DIE:
                # Write the next generation's rules before it starts.
                postponed, armed = armed, []
                for each in postponed:
                    self.gate(each).touch()
                    each.attempt += 1
                    waiting.insert(0, each)
                armed = self.arm(waiting)
            self.kill(fault, pid)
            self.gate(fault).touch()
            self.restart_dead_programs()
            yield fault
            if waiting and not armed:  # trainers read new rules only in a new generation
                armed = self.arm(waiting)
                self.kill_pid(self.trainer(0))
        self.write_rules([])

    def arm(self, waiting, armed=()):
        """Moves the next faults from `waiting` into the rules: some that leave the trainers running, and one that ends
        them. Returns all faults that are armed now, including those of `armed`."""
        chosen = list(armed)
        trainers_die = any(fault.victim in TRAINERS_DIE for fault in chosen)
        for fault in list(waiting):
            if fault.victim in TRAINERS_DIE and not trainers_die:
                trainers_die = True
            elif (fault.victim not in TRAINERS_LIVE
                  or sum(each.victim in TRAINERS_LIVE for each in chosen) >= TRAINERS_LIVE_MAX):
                continue
            waiting.remove(fault)
            chosen.append(fault)
        self.write_rules(chosen)
        return chosen

    def reached(self, armed):
        self.check_alive()
        return next(((fault, pid) for fault in armed if (pid := self.pid_at(fault))), None)

    def check_alive(self):
        try:
            view = self.cluster.get(self.job)
        except grpc.RpcError:
            return
        assert view.state_name not in harness.FINAL_STATES, f"{view.state_name}: {view.job.reason}"
