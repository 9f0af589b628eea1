"""`./dev bench launch`: each row measures what it names."""

import json
import subprocess
import sys

import harness
import pytest

BENCH = harness.ROOT / "bench"
sys.path.insert(0, str(BENCH))

import launch
import sides


def test_rows_compare_seconds_and_the_share_of_a_core():
    rows = {row.name: row for row in launch.make_rows()}
    measured = {name: 2.0 if name.endswith("-ours") else 8.0 for name in launch.make_measures("/")}

    for row in rows.values():
        row.add(measured)

    assert list(rows) == ["hello", "overhead", "restart", "first-step", "cpu"]
    assert all({*row.measures} <= {*measured} for row in rows.values())
    assert rows["restart"].summary()["median"] == 0.25 and rows["restart"].summary()["meets_bar"]
    assert rows["cpu"].summary()["median"] == 2.0 and not rows["cpu"].summary()["meets_bar"]


def test_the_overhead_and_the_restart_of_our_launcher_are_measured(tmp_path):
    assert 0 < launch.measure_overhead(launch.ours, tmp_path) < 60
    assert 0 < launch.measure_restart(launch.ours, tmp_path) < 60


def test_a_command_that_fails_ends_the_measurement(tmp_path):
    with pytest.raises(sides.MeasurementFailed, match="ended with 1"):
        launch.run_command(launch.ours(1, "--no-python", "false"), tmp_path)


@pytest.mark.long
def test_the_command_measures_the_requested_rows():
    done = subprocess.run([sys.executable, BENCH / "launch.py", "overhead", "restart", "--pairs", "1", "--json"],
                          capture_output=True, text=True, timeout=300, check=True)

    assert [row["row"] for row in json.loads(done.stdout)["rows"]] == ["overhead", "restart"]


@pytest.mark.long
def test_cpu_time_of_both_launchers_is_measured(tmp_path):
    assert 0 <= launch.measure_cpu(launch.ours, tmp_path, window_s=2) < 100
    assert 0 <= launch.measure_cpu(launch.torchrun, tmp_path, window_s=2) < 100
