"""Runs two cells of this session concurrently, because a cell mostly waits; a worker of pytest-xdist runs its cells one
by one. A cell is a combination of a target, a fault and a phase in which the fault begins (cells_test.py)."""

import concurrent.futures
import os
import pathlib
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import pytest

import processes

CELLS_AT_A_TIME = 2


class Pool:
    """Runs the given cells immediately, and other cells when they are requested; the test of a cell waits for its
    result. A failure contains the cell's logs."""

    def __init__(self, run_cell, cells):
        self._run_cell = run_cell
        self._pool = concurrent.futures.ThreadPoolExecutor(CELLS_AT_A_TIME)
        self._futures = {cell: self._pool.submit(run_cell, cell) for cell in cells}

    def result(self, cell):
        future = self._futures.get(cell) or self._pool.submit(self._run_cell, cell)
        return future.result()

    def close(self):
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session", autouse=True)
def follow_processes():
    processes.start_reaper()


@pytest.fixture(scope="session")
def pool(request, undisturbed, tmp_path_factory):
    import cells_test

    chosen = [item.callspec.params["cell"] for item in request.session.items
              if "cell" in getattr(getattr(item, "callspec", None), "params", {})]

    def run_cell(cell):
        try:
            cells_test.run_cell(cell, tmp_path_factory.mktemp(cell.name), undisturbed)
        except AssertionError as failure:
            return str(failure)
        except Exception:
            return traceback.format_exc()
        return None

    # Each worker of pytest-xdist knows all tests of the session, but runs only some of them.
    cells = Pool(run_cell, [] if "PYTEST_XDIST_WORKER" in os.environ else chosen)
    yield cells
    cells.close()
