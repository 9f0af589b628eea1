"""trainctl tokenize --build: the token cache of a job, made before the job."""

import json
import pathlib
import shutil
import signal

import harness

TOKENS = list(range(60)) * 50
PIECE = 16 << 20  # the approximate size of a piece of the data; each piece becomes a chunk


def write_data(path, pieces=0):
    """Lines of tokens, which fill `pieces` pieces and a part of one more."""
    line = json.dumps({"input_ids": TOKENS}) + "\n"
    path.write_text(line * (pieces * (PIECE + len(line)) // len(line) + 20))
    return path


def job_of(cluster, data, **keys):
    return cluster.write_job(train__data={"jsonl": [str(data)], "validation": 0}, train__steps=2,
                             checkpoint={"dir": str(cluster.folder / "runs" / "run")}, **keys)


def build(cluster, job, *flags, expect=0):
    return cluster.run_trainctl("tokenize", "--build", job, *flags, timeout=120, expect=expect)


def cache_of(done):
    [cache] = json.loads(done.stdout)["caches"]
    return cache


def files_in(folder):
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in pathlib.Path(folder).iterdir()}


def test_a_job_finds_the_tokens_that_were_built_before(cluster):
    job = job_of(cluster, write_data(cluster.folder / "data.jsonl"), resources__ranks=2)

    made = cache_of(build(cluster, job, "--json"))
    files = files_in(made["folder"])
    again = cache_of(build(cluster, job, "--json"))
    shown = build(cluster, job).stdout
    done = cluster.run_trainctl("run", job, "--json", timeout=120)

    assert (made["reused"], again["reused"], made["folder"]) == (False, True, again["folder"])
    assert made["tokens"] == 20 * len(TOKENS) and set(files) == {"00000.chunk", "index.json"}
    assert shown.startswith(f"train.data.jsonl: {made['tokens']} tokens, ") and f"already in {made['folder']}" in shown
    assert sorted(harness.steps_of(harness.events(done.stdout))) == [1, 2]
    assert files_in(made["folder"]) == files, "the job made tokens again"
    root = pathlib.Path(made["folder"]).parent
    assert root == cluster.folder / "runs" / ".trainyard-tokens"
    assert [path for path in root.iterdir() if path.is_dir()] == [pathlib.Path(made["folder"])]
    # The job did not read the data files again to compute their hash: it used the recorded one.
    assert len([path for path in root.iterdir() if path.name.startswith("files-")]) == 1


def test_several_builds_at_once_make_the_cache_that_one_makes(cluster):
    data = write_data(cluster.folder / "data.jsonl", pieces=2)
    job = job_of(cluster, data)
    elsewhere = f"checkpoint.dir={cluster.folder}/elsewhere/run"

    alone = cache_of(build(cluster, job, "--json", "--threads", 1, "--set", elsewhere))
    builders = [cluster.start_trainctl("tokenize", "--build", job, "--threads", "2") for _ in range(3)]

    assert [builder.wait(120) for builder in builders] == [0, 0, 0], [builder.output() for builder in builders]
    together = pathlib.Path(cache_of(build(cluster, job, "--json"))["folder"])
    assert together.name == pathlib.Path(alone["folder"]).name and alone["chunks"] == 3
    assert set(files_in(together)) == set(files_in(alone["folder"]))
    for path in together.iterdir():
        assert path.read_bytes() == (pathlib.Path(alone["folder"]) / path.name).read_bytes(), path


def test_an_interrupted_build_is_continued(cluster):
    job = job_of(cluster, write_data(cluster.folder / "data.jsonl", pieces=3))
    root = cluster.folder / "runs" / ".trainyard-tokens"
    for _ in range(10):  # on a busy machine a build may end before it is interrupted
        shutil.rmtree(root, ignore_errors=True)
        builder = cluster.start_trainctl("tokenize", "--build", job, "--threads", "1")
        harness.wait_until(lambda: list(root.glob("*/00000.chunk")) or not builder.alive(), "the first chunk")

        builder.signal(signal.SIGINT)

        code = builder.wait()
        [folder] = [path for path in root.iterdir() if path.is_dir()]
        first = files_in(folder)
        if "00003.chunk" not in first:
            break
    assert code == 130, builder.output()
    assert "00003.chunk" not in first and not [name for name in first if name.startswith(".making-")], first
    made = cache_of(build(cluster, job, "--json"))
    assert made["chunks"] == 4 and not made["reused"]
    assert first.items() <= files_in(folder).items(), "chunks were made again"


def test_what_cannot_be_built_is_refused(cluster):
    bad = cluster.folder / "bad.jsonl"
    bad.write_text(json.dumps({"input_ids": TOKENS}) + "\n{broken\n{}\n")
    job = job_of(cluster, bad)
    probe = cluster.folder / "probe.yaml"
    probe.write_text("name: probe\nprobe: {}\n")
    (cluster.folder / "file").write_text("")

    lines = build(cluster, job, "--json", expect=2)
    no_folder = build(cluster, job, "--set", f"checkpoint.dir={cluster.folder}/file/run", expect=2)

    assert f"{bad}: line 2: is not JSON" in lines.stderr and f"{bad}: line 3: has no field" in lines.stderr
    assert json.loads(lines.stdout)["exit_code"] == 2
    assert "next to " in no_folder.stderr and "set checkpoint.dir" in no_folder.stderr
    assert "is a probe" in build(cluster, probe, expect=2).stderr
    missing = build(cluster, job, "--set", "train.data.jsonl=[/nowhere.jsonl]", expect=2)
    assert "/nowhere.jsonl" in missing.stderr
    assert "--build JOB" in cluster.run_trainctl("tokenize", expect=2).stderr
    assert "--set" in cluster.run_trainctl("tokenize", bad, "--set", "name=a", expect=2).stderr


def test_a_job_of_bytes_needs_no_cache(cluster):
    done = build(cluster, cluster.write_job())

    assert done.stdout == "train.data.text: the job reads these files without a token cache\n"
    assert not list(cluster.folder.glob("**/.trainyard-tokens"))
