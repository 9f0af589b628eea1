"""Target x fault x phase, each in a real cluster in its own namespaces: the job succeeds with the losses of an
undisturbed run.

`./dev test faults` runs about two dozen cells, a different set for every commit; TRAINYARD_FAULTS=full runs all of them
with longer faults, TRAINYARD_FAULTS=kill-shim those with matching names. The cells are defined in cells.py, the faults
in faults.py.
"""

import itertools
import os
import re
import time

import pytest

import cells
import faults
import harness
import net_cluster

STEPS = 1600
JOB = {"train__steps": STEPS, "checkpoint__every_steps": STEPS // 2,
       "train__evaluate": {"every_steps": STEPS // 2, "batches": 4}}
END_S = 120.0
# A line of `why` that reports a problem.
DISTURBED = r"^ +(\d{4}-\S+ )?\S+ +(warning|error|\[(?!placement|operator)\w+\]) "
_numbers = itertools.count()


def job_document(folder):
    text = folder / "text.txt"
    words = "the rank waits for the mesh and the step follows the loss while the clock of the store runs".split()
    text.write_text(" ".join(words[(i * i + i // 7) % len(words)] for i in range(6000)))
    return harness.job_document(text, **JOB)


def unique_name():
    return f"{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """{step: loss} without faults, on the same hosts and network."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with net_cluster.NetCluster(folder, unique_name()) as cluster:
        cluster.start()
        cluster.submit(job_document(folder))
        assert cluster.watcher.wait_for_end(END_S)["state"] == "SUCCEEDED"
        losses = harness.metrics_steps(cluster.run_folder)
    assert sorted(losses) == list(range(1, STEPS + 1))
    return losses


def run_cell(cell, folder, undisturbed):
    """Runs one cell; a failure is an AssertionError that contains the logs."""
    with net_cluster.NetCluster(folder, unique_name(), cell.small_disks, cell.delayed) as cluster:
        try:
            cluster.start()
            cluster.submit(job_document(folder))
            cluster.wait_for_phase(cell.phase)
            began = time.time()
            faults.FAULTS[cell.fault](cluster, cell.target, lambda: hold(cell, cluster))
            done = cluster.watcher.wait_for_end(END_S)
            check(cell, cluster, done, undisturbed)
            check_cause(cell, cluster, began)
        except Exception as error:
            raise AssertionError(f"{cell.name}: {error}\n{cluster.all_logs()}") from error


def hold(cell, cluster):
    """Waits while the fault lasts: a fixed time, and if required until `why` reports the fault."""
    time.sleep(cells.hold_s())
    if cell.reported_meanwhile:
        harness.wait_until(lambda: cluster.watcher.lines_of("done")
                           or re.search(cell.reported_meanwhile, cluster.explanation()),
                           f"`why` matches {cell.reported_meanwhile!r}, or the job has ended", END_S)


def check(cell, cluster, done, undisturbed):
    assert done["state"] == "SUCCEEDED", done
    if not cell.may_restart:
        assert done["generation"] == 1, f"generation {done['generation']}: no rank and no data path was affected"
    assert done["generation"] == done["restarts"] + 1

    steps = cluster.watcher.lines_of("step")
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1)), "the watcher saw a step twice, or missed one"
    assert {line["step"]: line["loss"] for line in steps} == undisturbed
    assert harness.metrics_steps(cluster.run_folder) == undisturbed

    harness.wait_until(lambda: not cluster.leftovers(), "nothing is left running")


def check_cause(cell, cluster, began):
    ended = cluster.watcher.lines_of("state")[-1]["time_s"]
    cause = cell.cause(ended - began, ended - cluster.watcher.lines_of("checkpoint")[-1]["time_s"])
    explanation = cluster.explanation()
    assert re.search(cause, explanation), f"no line of `why` matches {cause!r}:\n{explanation}"
    disturbed = re.search(DISTURBED, explanation, re.MULTILINE)
    undisturbed_reported = "nothing disturbed the job" in explanation
    assert bool(disturbed) != undisturbed_reported, (
        f"`why` reports neither a problem nor an undisturbed job, or both:\n{explanation}")
    if not cell.may_restart:
        blamed = re.search(r"\[(hang|host_lost|abandon|restart|give_up)\].*", explanation)
        assert not blamed, f"`why` blames a rank or a host that was not affected: {blamed[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells.chosen(), ids=lambda cell: cell.name)
def test_a_job_with_an_injected_fault_succeeds_with_undisturbed_losses(cell, pool):
    failure = pool.result(cell)
    if failure:
        pytest.fail(failure, pytrace=False)


def test_every_seed_selects_every_fault_and_some_seed_selects_each_cell():
    selections = [cells.select(seed) for seed in range(200)]

    for selection in selections:
        assert len(selection) == len(set(selection)) == cells.CELLS_IN_A_SELECTION
        assert {cell.fault for cell in selection} == set(cells.TARGETS)
        for fault, targets in cells.TARGETS.items():
            selected = [cell.target for cell in selection if cell.fault == fault]
            assert len(set(selected)) == min(len(selected), len(targets)), f"{fault}: a target repeats too early"
    assert {cell for selection in selections for cell in selection} == set(cells.ALL)
