"""trainctl schedule draws and compares the schedules of a pipeline, without a cluster."""

import json
import os
import subprocess
import xml.etree.ElementTree as ElementTree

import harness
import pytest


def schedule(*arguments, cwd=None):
    return subprocess.run([harness.BIN / "trainctl", "schedule", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, cwd=cwd)


def refused(*arguments, cwd=None):
    done = schedule(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def test_a_schedule_is_drawn_with_its_figures():
    done = schedule("--stages", 2, "--micro-batches", 3, "--schedule", "gpipe", "--list")

    assert done.returncode == 0, done.stderr
    assert done.stdout == """\
gpipe, 2 stages, 3 micro-batches: time 12, bubble 25.0 %, at most 3 micro-batches in flight

time    0              5              10
rank 0  F0 F1 F2 .  .  .  B2 -  B1 -  B0 -
rank 1  .  F0 F1 F2 B2 -  B1 -  B0 -  .  .

RANK  BUSY  BUBBLE  IN FLIGHT
0     9     25.0 %  3
1     9     25.0 %  3

gpipe, 2 stages, 3 micro-batches: time 12, bubble 25.0 %, at most 3 micro-batches in flight
rank 0: F0 F1 F2 B2 B1 B0
rank 1: F0 F1 F2 B2 B1 B0
"""


def test_all_schedules_are_compared():
    done = schedule("--schedule", "all", "--micro-batches", 8, "--json")

    made = {one["schedule"]: one for one in json.loads(done.stdout)["schedules"]}
    assert list(made) == ["gpipe", "1f1b", "interleaved", "zero_bubble", "simulated"]
    assert made["gpipe"]["bubble"] == pytest.approx(3 / 11) == made["1f1b"]["bubble"]
    assert made["interleaved"]["bubble"] == pytest.approx(3 / 19)
    assert made["interleaved"]["busy"] == pytest.approx(made["1f1b"]["busy"])  # the same work, cut into chunks
    assert made["zero_bubble"]["bubble"] == pytest.approx(0.172, abs=0.001)
    assert made["gpipe"]["peak_in_flight"] == [8, 8, 8, 8] and made["1f1b"]["peak_in_flight"] == [4, 3, 2, 1]
    assert "ranks" not in made["1f1b"]


def test_numbers_of_micro_batches_are_compared():
    """One micro-batch is the naive pipeline, whose utilization is 1/P."""
    numbers = [1, 2, 4, 8, 16, 32]

    done = schedule("--stages", 4, "--schedule", "1f1b", "--micro-batches", ",".join(map(str, numbers)))

    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["MICRO-BATCHES", "SCHEDULE", "CHUNKS", "TIME", "PER", "MICRO-BATCH", "BUBBLE",
                              "UTILIZATION", "IN", "FLIGHT"]
    assert [int(row.split()[0]) for row in rows] == numbers
    assert rows[0].split()[-5:] == ["75.0", "%", "25.0", "%", "1"]
    assert rows[-1].split()[-5:] == ["8.6", "%", "91.4", "%", "4"]


def test_a_comparison_counts_chunks_as_parts_of_micro_batches():
    done = schedule("--schedule", "all", "--micro-batches", 8)

    (row,) = [line.split() for line in done.stdout.splitlines() if "interleaved" in line]
    assert row[-1] == "5.5"  # 11 chunks, and a stage consists of two: 11 / 2


def test_a_comparison_says_which_schedule_cannot_take_a_number():
    done = schedule("--schedule", "interleaved", "--micro-batches", "8,9")

    assert done.returncode == 0, done.stderr
    assert "9              interleaved  2       -" in done.stdout
    assert "2 rounds, which do not divide 9; use 8 or 10 micro-batches" in done.stdout


def test_too_few_and_too_many_micro_batches_are_slower():
    """Few micro-batches leave a bubble, and many small ones spend their time on the fixed cost of each action."""
    arguments = ["--samples", 32, "--micro-batches", "1,2,4,8,16,32", "--fixed-forward", 0.5, "--fixed-backward", 1]

    made = json.loads(schedule(*arguments, "--json").stdout)
    done = schedule(*arguments)

    times = {one["micro_batches"]: one["time"] for one in made["schedules"]}
    assert times == pytest.approx({m: (m + 3) * (1.5 + 96 / m) for m in times})
    assert made["fastest"] == {"schedule": "1f1b", "micro_batches": 16, "time": pytest.approx(142.5)}
    first, *_, last = made["schedules"]
    assert first["samples"] == 32 and first["bubble"] == pytest.approx(0.75) and first["overhead"] < 0.01
    assert last["samples"] == 1 and last["bubble"] < 0.1 and last["overhead"] == pytest.approx(48 / 157.5)
    assert done.returncode == 0, done.stderr
    assert "OVERHEAD" in done.stdout.splitlines()[0]
    assert done.stdout.endswith("""\
Fastest: 1f1b with 16 micro-batches of 2 samples, time 142.5
1 micro-batch of 32 samples takes 2.74 times as long: bubble 75.0 %, overhead 0.4 %
32 micro-batches of 1 sample take 1.11 times as long: bubble 8.6 %, overhead 30.5 %
""")


def test_measured_durations_are_compared():
    done = schedule("--schedule", "all", "--measured", "4:80:161,8:41:83,16:23:48,32:15:33", "--json")

    made = json.loads(done.stdout)
    assert [one["micro_batches"] for one in made["schedules"][::5]] == [4, 8, 16, 32]
    (one,) = [one for one in made["schedules"] if one["schedule"] == "1f1b" and one["micro_batches"] == 8]
    assert one["time"] == pytest.approx(11 * (41 + 83)) and "samples" not in one
    assert one["overhead"] == pytest.approx((8 * 124 - 4 * 241) / one["time"])
    assert made["fastest"]["time"] == min(one["time"] for one in made["schedules"])


def test_a_number_that_does_not_divide_the_samples_has_no_schedule():
    done = schedule("--samples", 36, "--micro-batches", "6,7", "--schedule", "all")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("7 micro-batches cannot divide 36 samples equally; use 6 or 9 micro-batches") == 1
    assert "use 6 or 9" in refused("--samples", 36, "--micro-batches", 7)


def test_durations_of_stages_and_links_change_the_schedule():
    done = schedule("--stages", 2, "--micro-batches", 1, "--forward", "1,3", "--backward", 5, "--link", 0.5, "--json")

    (made,) = json.loads(done.stdout)["schedules"]
    assert made["time"] == 15 and made["busy"] == [6, 8]
    assert made["ranks"][1][1] == {"action": "B0", "kind": "B", "chunk": 0, "micro_batch": 0, "start": 4.5, "end": 9.5}


def test_the_memory_of_a_found_schedule_is_limited():
    for kind in ("zero_bubble", "simulated"):
        done = schedule("--schedule", kind, "--in-flight", 2, "-o", "json")
        assert max(json.loads(done.stdout)["schedules"][0]["peak_in_flight"]) == 2


def test_the_svg_is_a_document_and_replaces_a_file(tmp_path):
    path = tmp_path / "drawing.svg"
    path.write_text("old")

    done = schedule("--schedule", "interleaved", "--svg", path)

    assert done.returncode == 0, done.stderr
    root = ElementTree.parse(path).getroot()
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0].startswith("interleaved, 4 stages of 2 chunks, 8 micro-batches: time ")
    assert len(titles) == 1 + 4 * 2 * 8 * 2
    assert os.listdir(tmp_path) == ["drawing.svg"]


def test_an_svg_that_cannot_be_written_is_refused_before_anything_is_printed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")

    for path in ("folder", "link", "/dev/null"):
        done = schedule("--svg", path, cwd=tmp_path)
        assert done.returncode == 2 and done.stdout == ""
        assert f"--svg: {path} exists and is not a regular file" in done.stderr
    assert "missing/drawing.svg" in refused("--svg", "missing/drawing.svg", cwd=tmp_path)
    assert "name one --schedule" in refused("--svg", "x.svg", "--schedule", "all", cwd=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["folder", "link"]


def test_all_problems_are_reported_together():
    error = refused("--schedule", "1fb1", "--stages", 0, "--micro-batches", "0,-4", "--in-flight", 0,
                    "--weight-share", 2, "--svg", "/dev/null")

    for text in ("there is no pipeline schedule '1fb1'", "did you mean 1f1b?", "stages is 0; it must be 1 to",
                 "micro_batches is 0; it must be", "micro_batches is -4; it must be", "--in-flight is 0",
                 "--weight-share is 2", "--svg draws one schedule",
                 "--svg: /dev/null exists and is not a regular file"):
        assert text in error


def test_all_problems_of_durations_are_reported_together():
    error = refused("--stages", 0, "--samples", 0, "--fixed-forward", -1, "--fixed-link", "inf", "--weight-share", 2,
                    "--measured", "4:1:2,4:2:3,x")

    for text in ("stages is 0; it must be 1 to", "--samples is 0", "--fixed-forward is -1", "--fixed-link is inf",
                 "--weight-share is 2", "--measured: 'x' is not M:FORWARD:BACKWARD", "remove --samples",
                 "two entries for 4 micro-batches"):
        assert text in error


@pytest.mark.parametrize(("arguments", "text"), [
    (["--fixed-backward", 1], "--fixed-link add to the durations of samples; give --samples"),
    (["--samples", 8, "--forward", 0], "the cost of forward is 0; it must be finite and positive"),
    (["--measured", "4:1:2", "--micro-batches", 8], "--measured has no durations for 8 micro-batches; it has 4"),
    (["--chunks-per-rank", 2], "schedule 1f1b has 1 chunk per rank; use schedule interleaved"),
    (["--schedule", "interleaved", "--chunks-per-rank", 1], "schedule interleaved needs 2 or more"),
    (["--forward", "1,2"], "the costs of forward have 2 entries; expected 1, or one for each of the 4 model chunks"),
    (["--link", "inf"], "the cost of link is inf; it must be finite and not negative"),
    (["--in-flight", 3], "--in-flight limits the schedules zero_bubble and simulated; --schedule is 1f1b"),
    (["--micro-batches", ",".join(["1"] * 33)], "--micro-batches has 33 numbers; it may have at most 32"),
    (["--micro-batches", "many"], "many"),
    (["--stages", 1024, "--micro-batches", 1025], "1049600 forwards; a schedule has at most 1048576"),
])
def test_bad_options_are_refused(arguments, text):
    assert text in refused(*arguments)
