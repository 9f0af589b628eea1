"""A host whose trainers can be given faults through a preloaded library; trainers themselves have no option for that.

    host = FaultyHost(cluster, tmp_path)
    host.start()
    job = cluster.submit(...)
    host.set_fault(1, "spin")  # rank 1, from its next step on; trainer_fault.c lists the faults
    host.clear_faults()
"""

import re
import shutil
import subprocess

import harness

# Finds the function that the fault `skip` replaces, in the output of nm.
SKIPPED = r"^([0-9a-f]+) [tT] .*::Trainer::StartAgreement\(.*\)$"


class FaultyHost:
    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.folder = folder
        self.programs = folder / "programs"

    def start(self, prefix=()):
        """Starts a coordinator, and a daemon with two slots whose trainers preload the fault library."""
        self.programs.mkdir()
        library = self.programs / "trainer_fault.so"
        source = harness.ROOT / "tests" / "cluster" / "trainer_fault.c"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", source, "-o", library, "-ldl"], check=True)
        for name in ("trainyard-worker", "trainyard-shim"):
            shutil.copy2(harness.BIN / name, self.programs / name)
        trainer = self.programs / "trainyard-trainer"
        trainer.write_text(f"""#!/bin/sh
export LD_PRELOAD={library} TRAINER_FAULT={self.folder}/fault.$RANK TRAINER_FAULT_SKIPS={self._skipped_function()}
exec {harness.BIN}/trainyard-trainer "$@"
""")
        trainer.chmod(0o755)
        self.cluster.start_coordinator()
        hosts = self.cluster._server_info().hosts
        self.cluster.start("worker-h1", [*prefix, self.programs / "trainyard-worker", "--coordinator",
                                         self.cluster.coordinator.address, "--slots", 2, "--name", "h1", "--state",
                                         self.folder / "worker-h1", "--metrics", "", "--health", ""])
        harness.wait_until(lambda: self.cluster._server_info().hosts > hosts, "worker h1 attaches")

    @staticmethod
    def _skipped_function():
        symbols = subprocess.run(["nm", "-C", harness.BIN / "trainyard-trainer"], check=True, capture_output=True,
                                 text=True)
        found = re.search(SKIPPED, symbols.stdout, re.MULTILINE)
        assert found, f"the trainer has no function {SKIPPED}; choose another that starts a collective"
        return found[1]

    def _file(self, rank):
        return self.folder / f"fault.{rank}"

    def set_fault(self, rank, what):
        """Writes the fault atomically: trainers may read the file at any time."""
        partial = self._file(rank).with_suffix(".partial")
        partial.write_text(what)
        partial.replace(self._file(rank))

    def set_all(self, what):
        for rank in (0, 1):
            self.set_fault(rank, what)

    def clear_faults(self):
        for rank in (0, 1):
            self._file(rank).unlink(missing_ok=True)
