"""Bad input gets a clear message: each row is refused by `trainctl validate` with exit code 2 before anything
starts."""

import os

import harness
import pytest

# (name of the row, the job's keys, texts that the message must contain)
ROWS = [
    ("misspelt key", {"train__modle": {"layers": 1}}, ["modle", "model"]),
    ("unknown key", {"train__colour": "blue"}, ["colour"]),
    ("wrong type", {"train__steps": "many"}, ["steps", "many"]),
    ("a list instead of a number", {"train__steps": [1, 2]}, ["steps"]),
    ("negative size", {"train__model__width": -16}, ["width", "-16"]),
    ("zero steps", {"train__steps": 0}, ["steps"]),
    ("huge size", {"train__model__layers": 10**12}, ["layers", "1024"]),
    ("heads do not divide width", {"train__model__heads": 3}, ["heads", "3", "16"]),
    ("micro does not divide global", {"train__batch": {"global": 7, "micro": 2}}, ["7", "2"]),
    ("unknown preset", {"train__model": {"preset": "lab-10n"}}, ["lab-10n", "lab-10m"]),
    ("unknown optimizer", {"train__optimizer__name": "adamv"}, ["adamv", "adamw"]),
    ("dropout above its range", {"train__model__dropout": 1.5}, ["dropout", "1.5"]),
    ("a name with capitals", {"name": "Small Job"}, ["name"]),
    ("a namespace with capitals", {"namespace": "My Team"}, ["namespace", "My Team"]),
    ("a namespace that is longer than a name", {"namespace": "n" * 64}, ["namespace", "63"]),
    ("priority above its range", {"priority": 101}, ["priority", "100", "101"]),
    ("negative priority", {"priority": -1}, ["priority", "-1"]),
    ("priority that is no number", {"priority": "urgent"}, ["priority", "urgent"]),
    ("negative keep_every", {"checkpoint__keep_every": -5}, ["keep_every", "-5"]),
    ("allow_data_change not a boolean", {"checkpoint__allow_data_change": "maybe"}, ["allow_data_change", "maybe"]),
    ("unknown checkpoint format", {"checkpoint__format": "whole"}, ["checkpoint.format", "whole"]),
    ("zero save timeout", {"checkpoint__timeout_s": 0}, ["timeout_s"]),
    ("sizes that do not multiply to the ranks", {"parallel": {"tensor": 2, "pipeline": 2}, "resources__ranks": 6},
     ["bad.yaml:", "stages 2 x tensor 2 = 4, but the job has 6 ranks"]),
    ("tensor does not divide the heads", {"parallel": {"tensor": 3}, "resources__ranks": 3}, ["tensor", "3", "heads"]),
    ("more stages than blocks", {"parallel": {"pipeline": {"stages": 64}}, "resources__ranks": 64},
     ["parallel.pipeline.stages", "64 stages"]),
    ("chunks of 1f1b", {"parallel": {"pipeline": {"stages": 2, "chunks_per_rank": 2}}}, ["1f1b", "interleaved"]),
    ("micro-batches that a schedule cannot take",
     {"parallel": {"pipeline": {"stages": 2, "schedule": "interleaved"}}, "train__model__layers": 4,
      "train__batch": {"global": 9, "micro": 1}}, ["9 micro-batches", "use 8 or 10"]),
    ("batch arithmetic", {"parallel": {"pipeline": 2}, "train__batch": {"global": 7, "micro": 2}},
     ["2 x 3 x 1 = 6", "2 x 4 x 1 = 8"]),
    ("unknown schedule", {"parallel": {"pipeline": {"stages": 2, "schedule": "1f2b"}}}, ["1f2b", "1f1b"]),
    ("context parallelism", {"parallel": {"context": 2}}, ["parallel", "context"]),
    ("data missing", {"train__data": {"text": ["/no/such/file"]}}, ["/no/such/file"]),
    ("a glob without matches", {"train__data": {"text": ["/no/such/*.txt"]}}, ["/no/such/*.txt"]),
]


@pytest.mark.parametrize(("keys", "texts"), [row[1:] for row in ROWS], ids=[row[0].replace(" ", "-") for row in ROWS])
def test_a_bad_job_is_refused_with_a_message(cluster, keys, texts):
    job = cluster.write_job("bad.yaml", **keys)

    done = cluster.run_trainctl("validate", job, expect=2)

    for text in texts:
        assert text in done.stderr, done.stderr
    assert "bad.yaml" in done.stderr, done.stderr


def test_all_problems_are_reported_together_with_line_and_column(cluster):
    job = cluster.folder / "many.yaml"
    job.write_text("name: small\ntrain:\n  modle: {layers: 1}\n  steps: -1\nresources: {rank: 2}\n")

    done = cluster.run_trainctl("validate", job, expect=2)

    for place in ("many.yaml:3:3", "many.yaml:4:", "many.yaml:5:13"):
        assert place in done.stderr, done.stderr


def test_empty_data_and_data_shorter_than_a_context_are_refused(cluster):
    for name, content in (("empty.txt", ""), ("short.txt", "ten bytes.")):
        (cluster.folder / name).write_text(content)
        job = cluster.write_job(train__data={"text": [name], "validation": 0})

        done = cluster.run_trainctl("run", job, expect=None)

        assert done.returncode in (1, 2), done
        assert name in done.stdout + done.stderr or "a sequence needs 17" in done.stderr, done.stderr
        harness.assert_nothing_runs(1)


def test_unreadable_data_is_refused(cluster):
    secret = cluster.folder / "secret.txt"
    secret.write_text("x" * 1000)
    secret.chmod(0)
    # Root can read every file, unless the program is started without the capabilities for that.
    without_root_access = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []

    program = cluster.start("trainctl", [*without_root_access, harness.BIN / "trainctl", "validate",
                                         cluster.write_job(train__data={"text": ["secret.txt"]})])

    assert program.wait() == 2
    assert "secret.txt" in program.output()


def test_more_gpus_than_the_machine_has_are_refused(cluster):
    done = cluster.run_trainctl("run", cluster.write_job(resources__device="cuda", resources__ranks=64), expect=None)

    assert done.returncode in (1, 2), done
    assert "resources.device is cuda and resources.ranks 64, but this machine has" in done.stderr, done.stderr
    assert "resources.device to cpu" in done.stderr, done.stderr
    harness.assert_nothing_runs(1)


def test_a_missing_or_invalid_job_file_is_refused(cluster):
    broken = cluster.folder / "broken.yaml"
    broken.write_text("name: [unclosed\n")

    missing = cluster.run_trainctl("validate", "nowhere.yaml", expect=2)
    unparsable = cluster.run_trainctl("validate", broken, expect=2)

    assert "nowhere.yaml" in missing.stderr
    assert "broken.yaml" in unparsable.stderr


def test_an_unusable_job_file_or_run_folder_gives_exit_code_2(cluster):
    large, secret, folder = cluster.folder / "large.yaml", cluster.folder / "secret.yaml", cluster.folder / "sealed"
    large.write_text("#" * (1 << 20) + "\nname: large\n")
    secret.write_text("name: secret\n")
    folder.mkdir()
    sealed = cluster.write_job("sealed.yaml", checkpoint__dir=str(folder / "run"))
    for path in (secret, folder):
        path.chmod(0)
    without_root_access = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []

    refused = ((["validate", large], "large.yaml"), (["validate", secret], "secret.yaml"), (["run", sealed], "sealed"))
    for arguments, name in refused:
        program = cluster.start("trainctl", [*without_root_access, harness.BIN / "trainctl", *arguments])
        assert program.wait() == 2, program.output()
        assert name in program.output()


def test_initial_weights_that_are_not_safetensors_are_refused_by_validate(cluster):
    done = cluster.run_trainctl("validate", cluster.write_job(train__model__init_from="/etc/passwd"), expect=2)

    assert "/etc/passwd is not a safetensors file" in done.stderr


def test_a_bad_set_option_is_refused_and_named(cluster):
    job = cluster.write_job()

    assert "train.stepz" in cluster.run_trainctl("validate", job, "--set", "train.stepz=3", expect=2).stderr
    assert "train.steps" in cluster.run_trainctl("validate", job, "--set", "train.steps=three", expect=2).stderr


def test_intervals_longer_than_the_run_are_warnings(cluster):
    job = cluster.write_job(train__schedule={"warmup_steps": 500}, checkpoint__every_steps=600,
                            train__evaluate={"every_steps": 700})

    done = cluster.run_trainctl("validate", job)

    for number in ("500", "600", "700"):
        assert number in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [
    ["frobnicate"], ["run"], ["status"], ["run", "a.yaml", "--frob"], ["submit", "a.yaml", "--priority", "high"],
    ["submit", "a.yaml", "--priority", "-1"], ["set-priority", "job"], ["set-priority", "job", "101"],
    ["queue", "--limit", "few"], ["queue", "extra"]], ids=" ".join)
def test_wrong_usage_gives_exit_code_2(cluster, arguments):
    assert cluster.run_trainctl(*arguments, expect=2).stderr


def test_an_unknown_job_is_reported_by_name(one_host):
    for verb in ("status", "watch", "cancel", "logs"):
        done = one_host.trainctl(verb, "nosuchjob", expect=None)
        assert done.returncode in (1, 2), f"{verb}: {done}"
        assert "nosuchjob" in done.stderr, f"{verb}: {done.stderr}"
