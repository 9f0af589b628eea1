"""Fixtures of all Python tests: the stubs made from our schema, and a cluster that is gone after each test."""

import os
import pathlib
import sys
import tempfile

# A fork of the test process is followed by exec at once: gRPC need not prepare for more.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
sys.path.insert(0, str(pathlib.Path(__file__).parent / "cluster"))
# Coordinators write their tokens below it, and everything that a test starts looks there: not in the home of whoever tests.
_STATE_HOME = tempfile.TemporaryDirectory(prefix="trainyard-state-home-")
os.environ["XDG_STATE_HOME"] = _STATE_HOME.name

import pytest

import harness
import processes
import stubs as stub_maker


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    return stub_maker.make(tmp_path_factory.mktemp("stubs"))


@pytest.fixture
def cluster(tmp_path, stubs):
    """A cluster with nothing started yet. After the test every process is gone, whatever the test did."""
    processes.start_following()
    cluster = harness.Cluster(tmp_path, stubs)
    yield cluster
    cluster.close()


@pytest.fixture
def one_host(cluster):
    """A coordinator and one daemon with two slots."""
    cluster.start_coordinator()
    cluster.start_worker("h1", slots=2)
    return cluster


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, stubs):
    """{step: loss} of harness.LONG_JOB with nothing going wrong; what every disturbed run of it must give too."""
    processes.start_following()
    cluster = harness.Cluster(tmp_path_factory.mktemp("undisturbed"), stubs)
    try:
        cluster.start_coordinator()
        cluster.start_worker("h1", slots=2)
        job = cluster.submit(run_folder=cluster.folder / "run", **harness.LONG_JOB)
        assert cluster.wait_for_end(job).state_name == "SUCCEEDED"
        return harness.metrics_steps(cluster.folder / "run")
    finally:
        cluster.close()
