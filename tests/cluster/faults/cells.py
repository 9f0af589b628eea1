"""The table of cells: target x fault x phase, and the expected result of each.

A target on which a fault has the same effect as on another target is omitted: a shim has no connection of its own, and
its files are in its daemon's state folder. `chosen` selects the cells of one test run.
"""

import dataclasses
import os
import random
import re
import subprocess

import harness

PHASES = ("forming", "first_step", "training", "saving", "finishing")
TARGETS = {
    "kill": ("coordinator", "daemon", "shim", "all"),
    "stop": ("coordinator", "daemon", "shim", "all"),
    "control_cut": ("coordinator", "daemon"),
    "host_cut": ("coordinator", "daemon", "all"),
    "loss": ("coordinator", "daemon", "all"),
    "rate": ("coordinator", "daemon", "all"),
    "delay": ("coordinator", "daemon", "all"),
    "disk_full": ("coordinator", "daemon", "all"),
}
CELLS_IN_A_SELECTION = 24
# How long a fault lasts, and how long it lasts if all cells run.
HOLD_S = 8.0
HOLD_FULL_S = 20.0

# (fault, target) -> what `trainctl why` must report, if the job continued for long enough (`Cell.cause`). In all other
# cases the job may not notice the fault; then `why` reports that nothing disturbed it.
CAUSES = {
    ("kill", "coordinator"): r"a new coordinator adopted the job",
    ("kill", "daemon"): r"a new daemon of host b adopted rank \d",
    ("kill", "shim"): r"rank \d on b.*(SIGKILL|shim)",
    ("kill", "all"): r"a new coordinator adopted the job(.|\n)*a new daemon of host b adopted rank \d",
    ("stop", "coordinator"): r"the coordinator was away for",
    ("stop", "daemon"): r"host b .*unreachable",
    ("stop", "shim"): r"rank \d on b \(its process has ended, but its shim did not report it\)",
    ("stop", "all"): r"the coordinator was away for",
    ("control_cut", "coordinator"): r"host [ab] .*unreachable",
    ("control_cut", "daemon"): r"host b .*unreachable",
    ("host_cut", "coordinator"): r"host [ab] .*unreachable",
    ("host_cut", "daemon"): r"host b .*(unreachable|lost)",
    ("host_cut", "all"): r"host [ab] .*(unreachable|lost)",
    ("disk_full", "coordinator"): r"the coordinator was held up for .* by a store that accepted no records",
    ("disk_full", "all"): r"the coordinator was held up for .* by a store that accepted no records",
}
# What is reported while the fault lasts: these faults last until this is reported or the job has ended. A slow network
# is detected only by comparison with earlier measurements: of the job's steps or, for a delay, of the heartbeats of its
# hosts, which are enough in the first step.
NETWORK = r"\[network\] .*(slow|late)"
REPORTED_MEANWHILE = {
    ("loss", "daemon"): (NETWORK, ("training", "saving")),
    ("loss", "all"): (NETWORK, ("training", "saving")),
    ("rate", "daemon"): (NETWORK, ("training", "saving")),
    ("rate", "all"): (NETWORK, ("training", "saving")),
    ("delay", "coordinator"): (NETWORK, ("first_step", "training", "saving")),
    ("delay", "daemon"): (NETWORK, ("first_step", "training", "saving")),
    ("delay", "all"): (NETWORK, ("first_step", "training", "saving")),
    ("disk_full", "daemon"): (r"\[disk\] +the disk of host b .* is full", ("first_step", "training", "saving")),
}
# The cause must be reported if the job continued for this long after the fault began: a kill is noticed immediately,
# silence after the lease. A stopped shim is noticed when its rank has finished and the job waits for it.
REPORTED_AFTER_S = {"kill": 0.5}
REPORTED_AFTER_LEASE_S = 4.0
REPORTED_AFTER_LAST_CHECKPOINT_S = 11.0


@dataclasses.dataclass(frozen=True)
class Cell:
    fault: str
    target: str
    phase: str

    @property
    def name(self):
        return f"{self.fault}-{self.target}-{self.phase}"

    @property
    def may_restart(self):
        """Whether a trainer dies or ranks cannot reach each other, so that the group may restart."""
        return (self.fault, self.target) in {("kill", "shim"), ("host_cut", "daemon"), ("host_cut", "all")}

    def cause(self, after_fault_s, after_checkpoint_s):
        """What must be reported about a job that ended `after_fault_s` after the fault began and `after_checkpoint_s`
        after its last checkpoint; empty: nothing."""
        elapsed_s, required_s = after_fault_s, REPORTED_AFTER_S.get(self.fault, REPORTED_AFTER_LEASE_S)
        if (self.fault, self.target) == ("stop", "shim"):
            elapsed_s, required_s = after_checkpoint_s, REPORTED_AFTER_LAST_CHECKPOINT_S
        return CAUSES.get((self.fault, self.target), "") if elapsed_s > required_s else ""

    @property
    def reported_meanwhile(self):
        """What must be reported while the fault lasts; empty: nothing."""
        cause, phases = REPORTED_MEANWHILE.get((self.fault, self.target), ("", ()))
        return cause if self.phase in phases else ""

    @property
    def small_disks(self):
        # The hosts whose state is on a disk of a few MB, which the fault can fill; "c" is the coordinator's host.
        names = {"coordinator": ("c",), "daemon": ("b",), "all": ("c", "a", "b")}
        return names[self.target] if self.fault == "disk_full" else ()

    @property
    def delayed(self):
        # The traffic that the fault delays: None, "control" (to and from the coordinator) or "all".
        return None if self.fault != "delay" else "control" if self.target == "coordinator" else "all"


ALL = [Cell(fault, target, phase) for fault, targets in TARGETS.items() for target in targets for phase in PHASES]


def _commit():
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=harness.ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "none"


def select(seed, count=CELLS_IN_A_SELECTION):
    """Returns `count` cells, a different set for each seed. Takes the faults in turn, and for each fault its targets in
    turn; phases are random."""
    draw = random.Random(seed)
    queues = []
    for fault in TARGETS:
        queue = [cell for cell in ALL if cell.fault == fault]
        draw.shuffle(queue)
        # One cell of each target comes first, then a second one of each, and so on.
        turn = {cell: [other.target for other in queue[:at]].count(cell.target) for at, cell in enumerate(queue)}
        queues.append(sorted(queue, key=turn.get))
    draw.shuffle(queues)
    selected = []
    while len(selected) < count:
        for queue in queues:
            if queue and len(selected) < count:
                selected.append(queue.pop(0))
    return selected


def chosen():
    """The cells selected by TRAINYARD_FAULTS: `full` is every cell; otherwise a regular expression of names. Unset:
    as many cells as TRAINYARD_FAULTS_CELLS says, a different set for each commit or TRAINYARD_FAULTS_SEED."""
    selection = os.environ.get("TRAINYARD_FAULTS", "")
    if selection == "full":
        return ALL
    if selection:
        return [cell for cell in ALL if re.search(selection, cell.name)]
    count = int(os.environ.get("TRAINYARD_FAULTS_CELLS") or CELLS_IN_A_SELECTION)
    return select(os.environ.get("TRAINYARD_FAULTS_SEED") or _commit(), count)


def hold_s():
    return HOLD_FULL_S if os.environ.get("TRAINYARD_FAULTS") == "full" else HOLD_S
