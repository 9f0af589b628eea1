"""trainctl plan chooses a layout for a job on given machines, and trainctl estimate prints the memory of ZeRO."""

import json
import os
import subprocess

import harness
import pytest
import yaml

JOB = """
name: planned
train:
  model: {preset: llama2-7b}
  data: {text: [corpus]}
  batch: {global: 64, length: 2048}
  precision: bf16
  steps: 10
"""
MACHINES = """
groups:
- name: pod
  hosts: HOSTS
  ranks_per_host: 8
  device: gpu
  model: h100
  between: {bytes_per_s: BETWEEN, latency_s: 1e-5}
"""
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "TRAINYARD_COORDINATOR"}


def trainctl(*arguments, cwd, expect=0):
    done = subprocess.run([harness.BIN / "trainctl", *map(str, arguments)], capture_output=True, text=True, cwd=cwd,
                          timeout=60, env=ENVIRONMENT)
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def write_files(folder, hosts=1, between="50e9", job=JOB):
    (folder / "job.yaml").write_text(job)
    (folder / "machines.yaml").write_text(MACHINES.replace("HOSTS", str(hosts)).replace("BETWEEN", between))


def plan_of(folder, *arguments):
    done = trainctl("plan", "job.yaml", "--machines", "machines.yaml", "--json", *arguments, cwd=folder)
    return json.loads(done.stdout)


def test_the_fastest_layout_comes_first_with_its_reason(tmp_path):
    write_files(tmp_path)

    text = trainctl("plan", "job.yaml", "--machines", "machines.yaml", cwd=tmp_path).stdout
    plan = plan_of(tmp_path)

    steps = [layout["step_s"] for layout in plan["layouts"]]
    assert len(steps) == 5
    assert all(step >= 0.9 * steps[0] for step in steps)  # simpler layouts win over equally fast ones
    assert text.startswith("6.74G parameters, steps of 64 x 2048 tokens\npod (gpu): 1 host x 8 ranks, ")
    assert f"Recommended: {plan['layouts'][0]['layout']} on 8 ranks\n  does not fit without sharding: needs " in text
    assert plan["tree"]["case"] == 2
    assert "need more memory than their ranks have" in text
    assert "Keys for the job file:" in text


def test_every_layout_is_accepted_by_validate_which_plans_the_same_memory(tmp_path):
    write_files(tmp_path, hosts=4, between="10e9")

    plan = plan_of(tmp_path, "--top", "8")

    assert plan["tree"]["case"] == 5 and plan["layouts"][0]["stages"] > 1
    for number, layout in enumerate(plan["layouts"]):
        document = yaml.safe_load(JOB)
        keys = yaml.safe_load(layout["keys"])
        document["train"]["batch"].update(keys["train"]["batch"])
        document.update(parallel=keys["parallel"], resources=keys["resources"])
        harness.write_job_file(tmp_path / f"{number}.yaml", document)
        report = json.loads(trainctl("validate", f"{number}.yaml", "--memory", "--json", cwd=tmp_path).stdout)
        assert report["valid"]
        assert report["memory"]["device_total_bytes"] == layout["memory_bytes"] <= layout["usable_bytes"]


def test_the_planned_job_can_be_written(tmp_path):
    write_files(tmp_path)

    trainctl("plan", "job.yaml", "--machines", "machines.yaml", "--write", "planned.yaml", cwd=tmp_path)

    report = json.loads(trainctl("validate", "planned.yaml", "--memory", "--json", cwd=tmp_path).stdout)
    assert report["valid"] and report["memory_device"] == "cuda"
    written = yaml.safe_load((tmp_path / "planned.yaml").read_text())
    assert written["resources"] == {"ranks": 8, "device": "cuda"}
    again = trainctl("plan", "job.yaml", "--machines", "machines.yaml", "--write", "planned.yaml", cwd=tmp_path,
                     expect=2)
    assert "planned.yaml exists already; give another name, or --force to replace it" in again.stderr


def test_keys_that_the_plan_replaces_are_no_problem_of_the_job(tmp_path):
    job = JOB.replace("llama2-7b", "llama3-70b").replace("global: 64, length: 2048", "global: 2048, length: 8192")
    write_files(tmp_path, hosts=16, job=job + "parallel: {tensor: 5, pipeline: 3, overlap: false}\n")

    plan = plan_of(tmp_path, "--set", "resources.hosts=[a]")

    assert plan["layouts"]
    assert plan["replaced_keys"] == ["parallel.tensor", "parallel.pipeline"]
    assert plan["kept_keys"] == ["parallel.overlap"]
    assert plan["notes"] == ["resources.hosts and resources.exclude_hosts of the job stay as they are; the plan did "
                             "not consider them"]


def test_a_file_that_cannot_be_written_is_refused_before_the_plan(tmp_path):
    write_files(tmp_path)
    for arguments, message in ((["--write", ""], "--write is empty"), (["--write", "-"], "--write is -, but"),
                               (["--write", "."], ". is a folder; give --write the name of a file"),
                               (["--write", "no/file.yaml"], "no file can be made in no: No such file"),
                               (["--force"], "--force replaces the file of --write, which is not given")):
        done = trainctl("plan", "job.yaml", "--machines", "machines.yaml", *arguments, cwd=tmp_path, expect=2)
        assert message in done.stderr and not done.stdout, done.stderr


def test_a_plan_for_1024_gpus_checks_few_layouts(tmp_path):
    write_files(tmp_path, hosts=128, job=JOB.replace("llama2-7b", "llama3-70b").replace("global: 64", "global: 2048"))

    plan = plan_of(tmp_path)

    assert len(plan["layouts"]) == 5 and not plan["stopped_early"]
    assert plan["candidates"] < 60_000 and plan["memory_plans"] <= 400
    assert sum(rejection["count"] for rejection in plan["rejected"]) > 1000


def test_problems_of_the_machines_file_are_reported_together(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "machines.yaml").write_text("groups:\n- {name: a, device: tpu, ranks_per_host: 4}\n"
                                            "- {name: b, device: gpu, ranks: 8}\n")

    done = trainctl("plan", "job.yaml", "--machines", "machines.yaml", cwd=tmp_path, expect=2)

    assert "problems in machines.yaml:" in done.stderr
    assert "groups[0].device: is tpu, on which this program does not train" in done.stderr
    assert "unknown key 'ranks'" in done.stderr
    assert "groups[1].memory_bytes: is required without `model`" in done.stderr


def test_a_model_that_fits_nowhere_names_what_comes_nearest(tmp_path):
    write_files(tmp_path, job=JOB.replace("llama2-7b", "llama3-70b"))
    (tmp_path / "machines.yaml").write_text(
        "groups:\n- {name: small, device: gpu, model: a100, memory_bytes: 16e9, ranks_per_host: 2}\n")

    done = trainctl("plan", "job.yaml", "--machines", "machines.yaml", "--json", cwd=tmp_path, expect=2)

    plan = json.loads(done.stdout)
    assert plan["layouts"] == [] and plan["nearest"]["memory_bytes"] > 16e9
    assert "no layout fits on these machines: the nearest, " in done.stderr


def test_without_machines_the_plan_is_for_this_machine_and_says_so(tmp_path):
    harness.write_job_file(tmp_path / "job.yaml", harness.job_document("corpus"))

    done = trainctl("plan", "job.yaml", cwd=tmp_path)

    assert "planned for this machine: 2 ranks (resources.ranks) share " in done.stderr
    assert "Decision tree, case 1: DDP, or ZeRO, because the model fits on one rank" in done.stdout
    gpus = trainctl("plan", "job.yaml", "--set", "resources.device=cuda", cwd=tmp_path, expect=2)
    assert "describe them with --machines FILE" in gpus.stderr


def test_the_machines_can_be_those_of_a_coordinator(cluster):
    cluster.start_coordinator()
    cluster.start_worker("h1", 2)

    done = cluster.trainctl("plan", cluster.write_job(), "--json")

    plan = json.loads(done.stdout)
    assert [(pool["device"], pool["hosts"], pool["ranks_per_host"]) for pool in plan["machines"]] == [("cpu", 1, 2)]
    assert any("the links of the hosts are not known" in note for note in plan["notes"])


def test_the_example_of_a_machines_file_is_valid(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    example = harness.ROOT / "configs" / "machines.yaml"

    plan = json.loads(trainctl("plan", "job.yaml", "--machines", example, "--json", cwd=tmp_path).stdout)

    assert plan["machines"][0]["between_bytes_per_s"] == 50e9


@pytest.mark.parametrize("convention, cells", [
    ("documents", ["14 14 14 3.5", "14 14 3.5 3.5", "56 14 14 14", "84 42 31.5 21"]),
    ("paper", ["14 14 14 3.5", "14 14 3.5 3.5", "84 21 21 21", "112 49 38.5 28"]),
    ("trainyard", ["14 14 14 3.5", "28 28 7 7", "84 21 21 21", "126 63 42 31.5"]),
])
def test_the_memory_of_zero_for_7b_on_four_ranks(tmp_path, convention, cells):
    done = trainctl("estimate", "--parameters", "7B", "--ranks", "4", "--convention", convention, cwd=tmp_path)

    rows = [line.split("  ") for line in done.stdout.splitlines()]
    rows = {row[0]: " ".join(cell.strip().removesuffix(" GB") for cell in row[1:] if cell) for row in rows[2:7]}
    assert list(rows.values())[1:] == cells
    assert "not halved" in done.stdout


def test_wrong_values_of_an_estimate_are_refused(tmp_path):
    done = trainctl("estimate", "--parameters", "many", cwd=tmp_path, expect=2)
    assert "--parameters is 'many'; expected a number" in done.stderr
    done = trainctl("estimate", "--parameters", "7B", "--convention", "ours", cwd=tmp_path, expect=2)
    assert "expected one of documents, paper, trainyard" in done.stderr
