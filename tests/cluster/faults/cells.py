"""The table of cells: who x what x when, and what is to come of each.

A target that a fault cannot tell from another one is left out: a shim has no connection of its own, and its files lie
in its daemon's state. `chosen` is what one run of the tests takes of it.
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
CELLS_IN_CI = 24
HOLD_S = 8.0
HOLD_FULL_S = 20.0

# (fault, target) -> what `trainctl why` has to say once it was due. Not here, or not due: the job may not notice, and then
# `why` says that nothing disturbed it.
CAUSES = {
    ("kill", "coordinator"): r"a new coordinator took the job up",
    ("kill", "daemon"): r"a new daemon of host b took up rank \d",
    ("kill", "shim"): r"rank \d on b.*(SIGKILL|shim)",
    ("kill", "all"): r"a new coordinator took the job up(.|\n)*a new daemon of host b took up rank \d",
    ("stop", "coordinator"): r"the coordinator was away for",
    ("stop", "daemon"): r"host b .*unreachable",
    ("stop", "shim"): r"rank \d on b \(its process has ended, its shim does not tell\)",
    ("stop", "all"): r"the coordinator was away for",
    ("control_cut", "coordinator"): r"host [ab] .*unreachable",
    ("control_cut", "daemon"): r"host b .*unreachable",
    ("host_cut", "coordinator"): r"host [ab] .*unreachable",
    ("host_cut", "daemon"): r"host b .*(unreachable|lost)",
    ("host_cut", "all"): r"host [ab] .*(unreachable|lost)",
    ("disk_full", "coordinator"): r"the coordinator was held up for .* by a store that took nothing",
    ("disk_full", "all"): r"the coordinator was held up for .* by a store that took nothing",
}
# What goes on for as long as the fault does, and is told in its course: these faults last until it was told, or the job has
# ended. A network can only be called slow by those who knew it faster, so the job has to be under way.
NETWORK = r"\[network\] .*(slow|late)"
TOLD_MEANWHILE = {
    ("loss", "daemon"): (NETWORK, ("training", "saving")),
    ("loss", "all"): (NETWORK, ("training", "saving")),
    ("rate", "daemon"): (NETWORK, ("training", "saving")),
    ("rate", "all"): (NETWORK, ("training", "saving")),
    ("delay", "coordinator"): (NETWORK, ("first_step", "training", "saving")),
    ("delay", "daemon"): (NETWORK, ("first_step", "training", "saving")),
    ("delay", "all"): (NETWORK, ("first_step", "training", "saving")),
    ("disk_full", "daemon"): (r"\[disk\] +the disk of host b .* is full", ("first_step", "training", "saving")),
}
# So long after the fault began the job must have gone on for its cause to be told to it: what is killed is seen at
# once, a silence after the lease. That a shim is stopped shows when its rank has made all steps and is waited for.
TOLD_AFTER_S = {"kill": 0.5}
TOLD_AFTER_LEASE_S = 4.0
TOLD_AFTER_LEAVE_S = 11.0


@dataclasses.dataclass(frozen=True)
class Cell:
    fault: str
    target: str
    phase: str

    @property
    def name(self):
        return f"{self.fault}-{self.target}-{self.phase}"

    @property
    def hurts_training(self):
        """A trainer dies of it, or ranks cannot reach each other; a restart of the group is right then."""
        return (self.fault, self.target) in {("kill", "shim"), ("host_cut", "daemon"), ("host_cut", "all")}

    def cause(self, lasted_s, left_s):
        """What has to be told of a job that went on for so long after the fault began, and so long after its last
        checkpoint; empty: nothing need be."""
        due = TOLD_AFTER_S.get(self.fault, TOLD_AFTER_LEASE_S)
        if (self.fault, self.target) == ("stop", "shim"):
            lasted_s, due = left_s, TOLD_AFTER_LEAVE_S
        return CAUSES.get((self.fault, self.target), "") if lasted_s > due else ""

    @property
    def told_meanwhile(self):
        """What is told while the fault lasts; empty: nothing need be."""
        cause, phases = TOLD_MEANWHILE.get((self.fault, self.target), ("", ()))
        return cause if self.phase in phases else ""

    @property
    def small_disks(self):
        names = {"coordinator": ("c",), "daemon": ("b",), "all": ("c", "a", "b")}
        return names[self.target] if self.fault == "disk_full" else ()

    @property
    def delayed(self):
        return None if self.fault != "delay" else "control" if self.target == "coordinator" else "all"


ALL = [Cell(fault, target, phase) for fault, targets in TARGETS.items() for target in targets for phase in PHASES]


def _commit():
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=harness.ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "none"


def rotated(seed, count=CELLS_IN_CI):
    """`count` cells, another lot for each seed: all faults in turn, of each its targets in turn, phases at random."""
    draw = random.Random(seed)
    lots = []
    for fault in TARGETS:
        lot = [cell for cell in ALL if cell.fault == fault]
        draw.shuffle(lot)
        # Different targets first.
        order = {cell: [other.target for other in lot[:at]].count(cell.target) for at, cell in enumerate(lot)}
        lots.append(sorted(lot, key=order.get))
    draw.shuffle(lots)
    taken = []
    while len(taken) < count:
        for lot in lots:
            if lot and len(taken) < count:
                taken.append(lot.pop(0))
    return taken


def chosen():
    """By TRAINYARD_FAULTS: `full` is every cell; else a regular expression of names; unset: as many as fit in CI,
    rotating with the commit (TRAINYARD_FAULTS_SEED names another lot)."""
    wish = os.environ.get("TRAINYARD_FAULTS", "")
    if wish == "full":
        return ALL
    if wish:
        return [cell for cell in ALL if re.search(wish, cell.name)]
    return rotated(os.environ.get("TRAINYARD_FAULTS_SEED") or _commit())


def hold_s():
    return HOLD_FULL_S if os.environ.get("TRAINYARD_FAULTS") == "full" else HOLD_S
