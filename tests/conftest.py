"""Fixtures of all Python tests: the stubs generated from our schema, and a cluster whose processes are killed after
each test."""

import os
import pathlib
import signal
import sys
import tempfile

# Every fork of the test process is followed by exec immediately, so gRPC need not support forks.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
sys.path.insert(0, str(pathlib.Path(__file__).parent / "cluster"))
# Coordinators write their tokens here, and all programs of the tests look here, not in the home folder of the user.
_STATE_HOME = tempfile.TemporaryDirectory(prefix="trainyard-state-home-")
os.environ["XDG_STATE_HOME"] = _STATE_HOME.name

import pytest

import faulty_trainers
import harness
import processes
import stubs as stub_maker


@pytest.fixture(scope="session", autouse=True)
def signals():
    """Replaces ignored signals by a handler that does nothing. A program inherits an ignored signal, as after
    `nohup ./dev test`, but not a handler, so it gets the default action that some tests rely on."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    return stub_maker.make(tmp_path_factory.mktemp("stubs"))


@pytest.fixture
def cluster(tmp_path, stubs):
    """A cluster with nothing started yet. Kills every process after the test, whatever the test did."""
    processes.start_reaper()
    cluster = harness.Cluster(tmp_path, stubs)
    yield cluster
    cluster.close()


@pytest.fixture
def one_host(cluster):
    """A coordinator and one daemon with two slots."""
    cluster.start_coordinator()
    cluster.start_worker("h1", slots=2)
    return cluster


@pytest.fixture
def slow_host(cluster, tmp_path):
    """A coordinator and one daemon with two slots, whose jobs cannot end before the test has acted: they are slow until
    it clears the faults. Trainers of a later daemon have no faults."""
    host = faulty_trainers.FaultyHost(cluster, tmp_path)
    host.start()
    host.slow_down()
    return host


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, stubs):
    """{step: loss} of an undisturbed run of harness.LONG_JOB; runs with injected faults must give the same losses."""
    processes.start_reaper()
    cluster = harness.Cluster(tmp_path_factory.mktemp("undisturbed"), stubs)
    try:
        cluster.start_coordinator()
        cluster.start_worker("h1", slots=2)
        job = cluster.submit(run_folder=cluster.folder / "run", **harness.LONG_JOB)
        assert cluster.wait_for_end(job).state_name == "SUCCEEDED"
        return harness.metrics_steps(cluster.folder / "run")
    finally:
        cluster.close()


# ---- The order of tests, and how ./dev test --all resumes where it was interrupted: tools/passed.py ----

_PASSED = os.environ.get("TRAINYARD_TESTS_PASSED")


def slow_first(items, workers):
    """The items in an order in which workers of pytest-xdist end at the same time. Each worker gets an equal contiguous
    part of the order; when it is done, it takes tests from the end of another part (--dist worksteal). A slow test that
    starts last would keep one worker busy alone, so every part begins with slow tests. The other tests of a file stay
    together, because they share fixtures."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    ordered, begin = [], 0
    for worker in range(workers):
        own = slow[worker::workers]
        end = begin + max(0, (len(items) - len(ordered)) // (workers - worker) - len(own))
        ordered += own + others[begin:end]
        begin = end
    return ordered + others[begin:]


# Called last: by then, pytest has removed the tests that do not run, and ordered the others by their fixtures.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = slow_first(items, workers)
    if not _PASSED:
        return
    passed = {line for line in pathlib.Path(_PASSED).read_text().splitlines() if line.startswith("python ")}
    passed_before = [item for item in items if f"python {item.nodeid}" in passed]
    config.hook.pytest_deselected(items=passed_before)
    items[:] = [item for item in items if item not in passed_before]


_not_passed = set()  # the tests that failed or were skipped in any phase


def pytest_runtest_logreport(report):
    if not report.passed:
        _not_passed.add(report.nodeid)
    if _PASSED and report.when == "teardown" and report.nodeid not in _not_passed:
        with open(_PASSED, "a", encoding="utf-8") as passed:
            passed.write(f"python {report.nodeid}\n")
