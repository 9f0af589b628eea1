"""`./dev bench operate`: each row measures what it names, and leaves no process."""

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys

import harness
import pytest

BENCH = harness.ROOT / "bench"
sys.path.insert(0, str(BENCH))

import operate
import operate_browser
import operate_clients
import operate_memory
import operate_rows
import operate_visitors
import sides

SMALL = ["--hosts", "4", "--scrapes", "2", "--watchers", "4", "--gets", "20", "--submissions", "20", "--loads", "1",
         "--seconds", "4", "--minutes", "0.2", "--warm-minutes", "0.05", "--warm-steps", "10", "--warm-jobs", "1",
         "--fill-jobs", "50", "--interval", "0.2", "--pause", "0"]


def options(*arguments):
    return operate.read_arguments(operate.make_rows(), [*SMALL, *arguments])


def processes_with(text):
    """Command lines that contain the text."""
    lines = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().decode(errors="replace"))
        except OSError:  # the process has ended
            continue
    return [line for line in lines if text in line]


def test_figures_are_compared_with_their_bars():
    row = operate.make_rows()[0]
    figures = [operate_rows.Figure("rate", 1500, "/s", 1000, "higher"), operate_rows.Figure("time", 1.5, "s", 1),
               operate_rows.Figure("slope", 3, "KiB/min", others={"steps": 7})]

    results = operate.results_of(row, figures)
    table = operate.table({"cpu": "x", "cores": 2, "commit": "y", "date": "z"}, results)

    assert [result["meets_bar"] for result in results] == [True, False, None]
    assert "≥ 1,000 /s | ok" in table and "≤ 1 s | MISSES BAR" in table and "none |  | steps 7" in table


def test_a_step_counts_as_shown_when_it_or_a_later_one_is_shown():
    reported = [(1, 10.0), (2, 11.0), (3, 12.0), (4, 13.0)]
    shown = [(2, 11.5), (3, 12.25)]

    assert operate_rows.delays_of(reported, shown) == [0.5, 0.25]
    assert operate_rows.delays_of(reported, []) == []


def test_a_percentile_is_a_sample_and_both_modules_count_equally_many_kinds_of_memory():
    assert operate_rows.percentile(list(range(100)), 0.99) == 98
    assert operate_rows.MEMORY_KINDS == len(operate_clients.MEMORY_KINDS)


def test_wrong_usage_is_refused_with_the_valid_values(capsys):
    for arguments, message in ((["scrape"], "unknown row: scrape; there are metrics, submit, page, rss"),
                               (["--hosts", "0"], "--hosts is 0, must be 1 to 8000"),
                               (["--warm-minutes", "9"], "--warm-minutes is 9, must be less than --minutes, 0.2")):
        with pytest.raises(SystemExit) as ended:
            options(*arguments)

        assert ended.value.code == 2 and message in capsys.readouterr().err


def test_simulated_hosts_run_jobs_whose_metrics_are_scraped():
    median, longest = operate_rows.measure_metrics(options())

    assert 0 < median.value <= longest.value < 10_000
    assert longest.others["series"] > 100 and longest.others["bytes"] > 10_000


def test_submissions_and_gets_are_measured_while_jobs_are_watched():
    rate, get = operate_rows.measure_submit(options())

    assert rate.value > 1 and rate.others["jobs"] == 20
    assert 0 < get.others["p50_ms"] <= get.value <= get.others["max_ms"] < 10_000


def test_a_client_that_fails_ends_the_measurement():
    folder, _ = operate_rows.schema()
    client = operate_rows.Client("get", {"stubs": folder.name, "address": f"127.0.0.1:{harness.free_port()}",
                                         "jobs": ["none"], "count": 1})

    with pytest.raises(sides.MeasurementFailed, match="the process 'get' failed: UNAVAILABLE"):
        client.next()
    client.close()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_no_process(tmp_path, number):
    # SIGINT is ignored at first, as in a program that a shell has started in the background.
    command = ["env", "--ignore-signal=INT", sys.executable, BENCH / "operate.py", "metrics", *SMALL, "--scrapes",
               "10000"]
    with subprocess.Popen(command, env=dict(os.environ, TMPDIR=str(tmp_path)), stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as bench:
        try:
            # Finds the coordinator by its state folder, and the hosts by the folder of their modules.
            harness.wait_until(lambda: len(processes_with(f"{tmp_path}/trainyard-")) >= 2, "coordinator and hosts run")
            bench.send_signal(number)
            errors = bench.communicate(timeout=60)[1]
        finally:
            bench.kill()

    assert bench.returncode == 130 and "bench: interrupted" in errors and "Traceback" not in errors
    assert processes_with(f"{tmp_path}/trainyard-") == [] and list(tmp_path.iterdir()) == []


def memory_samples(rss_of, allocated_of=lambda hour: 900):
    """Fifty minutes, a sample every 5 s."""
    return [operate_memory.Sample(time_s, rss_of(time_s / 3600), 5000, allocated_of(time_s / 3600), 20, 30)
            for time_s in range(600, 3600, 5)]


def test_the_growth_of_each_process_is_compared_with_the_noise_of_its_samples(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
    samples = {"coordinator": memory_samples(lambda hour: 30_000 + int(400 * hour)),
               "daemon h1": memory_samples(lambda hour: 20_000 + int(3600 * hour) % 7)}

    grows, anonymous, allocated, flat, _, _, load = operate_memory.figures_of(samples, {"steps": 70, "jobs": 3})

    assert grows.value == pytest.approx(400, abs=5) and operate.meets_bar(grows) is False
    assert grows.others["low"] <= grows.value <= grows.others["high"]
    assert anonymous.value == 0 and operate.meets_bar(anonymous) is True
    assert allocated.what.startswith("allocated memory, coordinator") and operate.meets_bar(allocated) is True
    assert operate.meets_bar(flat) is True and "50 min after the warm-up" in flat.what
    assert (load.value, load.others, operate.meets_bar(load)) == (70, {"jobs": 3}, None)


def test_growth_of_100_kib_per_hour_counts_in_exact_allocated_memory_alone(monkeypatch):
    samples = {"daemon h1": memory_samples(lambda hour: 20_000 + int(100 * hour), lambda hour: 900 + 100 * hour)}

    _, _, with_kept_blocks, _ = operate_memory.figures_of(samples, {})
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
    resident, _, allocated, _ = operate_memory.figures_of(samples, {})

    assert "including the freed blocks that threads keep" in with_kept_blocks.what
    assert operate.meets_bar(with_kept_blocks) is None
    assert resident.value == pytest.approx(100, abs=5) and operate.meets_bar(resident) is True
    assert allocated.value == pytest.approx(100, abs=5) and operate.meets_bar(allocated) is False


def test_short_samples_of_memory_have_no_verdict():
    figure, _, _, _ = operate_memory.figures_of({"coordinator": memory_samples(lambda hour: 30_000)[:4]}, {})

    assert operate.meets_bar(figure) is None and "too few or too noisy samples for a verdict" in figure.what


def rss_of_bench(tmp_path, *arguments, **options):
    command = ["env", "--ignore-signal=INT", sys.executable, BENCH / "operate.py", "rss", *SMALL, "--json",
               "--samples", tmp_path / "samples.csv", *arguments]
    return subprocess.Popen(command, env=dict(os.environ, TMPDIR=str(tmp_path)), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **options)


def sampled(tmp_path, phase):
    """Lines of the file of samples in this phase."""
    path = tmp_path / "samples.csv"
    return [line for line in path.read_text().splitlines() if f",{phase}," in line] if path.exists() else []


@pytest.mark.long
def test_the_command_measures_memory_and_prints_json(tmp_path):
    with rss_of_bench(tmp_path) as bench:
        output, errors = bench.communicate(timeout=180)

    assert bench.returncode == 0, errors
    rows = json.loads(output)["rows"]
    assert [row["unit"] for row in rows] == ["KiB/h"] * 9 + ["steps"]
    assert all(row["others"]["max_mib"] >= row["others"]["last_mib"] > 0.1 for row in rows[:9])
    assert rows[9]["others"]["watch"] > 0 and rows[9]["others"]["scrape"] > 0
    assert len(sampled(tmp_path, "warm-up")) >= 3 and len(sampled(tmp_path, "measure")) >= 9


@pytest.mark.long
def test_an_interrupted_measurement_of_memory_prints_what_it_has(tmp_path):
    with rss_of_bench(tmp_path, "--minutes", "30") as bench:
        try:
            harness.wait_until(lambda: len(sampled(tmp_path, "measure")) >= 12, "memory is sampled", 120)
            bench.send_signal(signal.SIGINT)
            output, errors = bench.communicate(timeout=60)
        finally:
            bench.kill()

    assert bench.returncode == 130 and "bench: interrupted" in errors and "Traceback" not in errors, errors
    assert [row["unit"] for row in json.loads(output)["rows"]] == ["KiB/h"] * 9 + ["steps"]
    assert processes_with(f"{tmp_path}/trainyard-") == []


@pytest.mark.parametrize("end", ["close", "cut", "slow"])
def test_a_relay_forwards_and_can_reset_its_connections(end):
    """With `slow`, the relay limits how fast the reader takes bytes, so that the sender has to wait."""
    async def converse():
        received = asyncio.Queue()

        async def serve(reader, writer):
            sent = 0
            try:
                while sent < 4 << 20:
                    writer.write(b"x" * 4096)
                    sent += 4096
                    async with asyncio.timeout(0.5 if end == "slow" else 60):
                        await writer.drain()
                await reader.read()
                received.put_nowait("all")
            except (TimeoutError, OSError) as error:
                received.put_nowait(type(error).__name__)
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with operate_visitors.Relay(server.sockets[0].getsockname()[1], end == "slow") as relay:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(relay.address.rpartition(":")[2]))
            if end == "cut":
                await reader.read(10)
                relay.cut_all()
            elif end == "close":
                await reader.readexactly(4 << 20)
                writer.close()
            found = await asyncio.wait_for(received.get(), 60)
            writer.close()
        server.close()
        return found

    assert asyncio.run(converse()) == {"close": "all", "cut": "ConnectionResetError", "slow": "TimeoutError"}[end]


@pytest.mark.long
@pytest.mark.skipif(operate_browser.find() is None, reason="there is no chromium")
def test_the_page_shows_jobs_and_steps():
    painted, delay = operate_rows.measure_page(options())

    assert 0 < painted.others["first_contentful_paint_s"] <= painted.value < 60 and 0 < delay.value < 60
