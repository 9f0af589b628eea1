"""The Python package as a user installs it: its own tests, its examples on a cluster, and the real libraries."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap

import harness
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "client" / "python"
LEAVING = ROOT / "tests" / "interop" / "scripts" / "run_example.py"


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder with the installed package. Installs from a copy, because the build writes into its source folder."""
    folder = tmp_path_factory.mktemp("python-package")
    for part in ("proto", "client/python"):
        shutil.copytree(ROOT / part, folder / "checkout" / part, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
                    "--disable-pip-version-check", "--target", folder / "site", folder / "checkout" / "client/python"],
                   check=True, timeout=120)
    return folder / "site"


def python(installed, *arguments, cluster=None, expect=0):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    if cluster is not None:
        environment["TRAINYARD_COORDINATOR"] = cluster.coordinator.address
    done = subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True,
                          timeout=120, cwd=installed.parent, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_tests_of_the_installed_package_pass(installed):
    output = python(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir",
                    PACKAGE / "tests", *sorted((PACKAGE / "tests").glob("*_test.py")))

    assert " passed" in output and "skipped" not in output


def test_the_examples_run(installed, one_host):
    watched = python(installed, PACKAGE / "examples/submit_and_watch.py", one_host.text, cluster=one_host)
    both = python(installed, PACKAGE / "examples/asyncio_watch.py", cluster=one_host)

    lines = watched.splitlines()
    assert [line.partition(":")[0] for line in lines[:10]] == [f"step {step}" for step in range(1, 11)]
    assert lines[10] == "SUCCEEDED" and "from-python" in watched
    assert sorted(both.splitlines()) == ["hello from one", "hello from two"]


def test_the_example_of_a_service_runs(installed, one_host):
    assert python(installed, PACKAGE / "examples/service.py", cluster=one_host).splitlines() == [
        "submitted once: True", "JOB_ID_IN_USE serviceorder17", "INVALID_REQUEST ['spec.name']", "SUCCEEDED",
        "VERSION_MISMATCH True", "['serviceorder17']", "['h1']"]


def test_a_watch_continues_after_the_coordinator_was_killed(installed, one_host):
    job = one_host.submit(train__steps=600)
    watch = one_host.start("watch", [sys.executable, "-c", textwrap.dedent(f"""
        import trainyard
        for event in trainyard.Client("{one_host.coordinator.address}").watch("{job}"):
            if event.WhichOneof("kind") == "step":
                print(event.step.step, flush=True)
    """)], env={"PYTHONPATH": str(installed)})
    harness.wait_until(lambda: "5\n" in watch.output(), "the watch shows steps")
    port = int(one_host.coordinator.address.rpartition(":")[2])

    one_host.coordinator.signal(signal.SIGKILL)
    one_host.coordinator.wait()
    one_host.start_coordinator(port=port)

    assert watch.wait() == 0, watch.output()
    assert watch.output().split() == [str(step) for step in range(1, 601)]


def test_errors_have_the_class_and_the_message_of_the_coordinator(installed, one_host):
    output = python(installed, "-c", textwrap.dedent("""
        import trainyard
        client = trainyard.Client()
        for call in (lambda: client.submit({"name": "Bad Name", "command": {"argv": []}}),
                     lambda: client.get("nothing1"), lambda: client.job("nothing1"),
                     lambda: client.set_host("nowhere", "drain")):
            try:
                call()
            except trainyard.TrainyardError as error:
                print(type(error).__name__, str(error).replace("\\n", " "))
        print(client.get_server_info().hosts, [host.name for host in client.list_hosts().hosts])
        print(client.jobs()._repr_html_().startswith("<table>"))
    """), cluster=one_host)

    lines = output.splitlines()
    assert lines[0].startswith("InvalidArgumentError") and "name" in lines[0] and "argv" in lines[0]
    assert [line.split()[0] for line in lines[1:4]] == ["NotFoundError"] * 3
    assert lines[4:] == ["1 ['h1']", "True"]


def test_a_paused_script_saves_and_resumes_where_it_was(installed, one_host):
    state = one_host.folder / "state"
    job = one_host.submit_document({"name": "script", "resources": {"ranks": 1}, "command": {
        "argv": [sys.executable, str(PACKAGE / "examples/stop_and_resume.py"), str(state), "800"],
        "env": [f"PYTHONPATH={installed}"], "workdir": str(one_host.folder)}})
    harness.wait_until(lambda: "first step 1" in one_host.logs_of(job), "the script runs")

    one_host.trainctl("pause", job)
    one_host.wait_for_state(job, "PAUSED")
    stopped = int(state.read_text())
    one_host.trainctl("resume", job)

    assert one_host.wait_for_end(job).state_name == "SUCCEEDED"
    assert 0 < stopped < 800 and state.read_text() == "800"
    assert f"first step {stopped + 1}" in one_host.logs_of(job)


def submit_saving(installed, cluster, steps, **recovery):
    job = cluster.submit_document({"name": "saving", "resources": {"ranks": 1}, "recovery": recovery, "command": {
        "argv": [sys.executable, str(PACKAGE / "examples/save_on_request.py"), str(steps)], "grace_s": 2,
        "env": [f"PYTHONPATH={installed}"], "workdir": str(cluster.folder)}})
    cluster.wait_for_step(job, 5)
    # Reports may arrive before the fact that the process was started.
    harness.wait_until(lambda: cluster.get(job).pid_of(0), "the process is known")
    return job


def test_a_script_saves_on_request_and_a_new_process_finds_its_newest_checkpoint(installed, one_host):
    job = submit_saving(installed, one_host, 1_000_000)

    saved = one_host.trainctl("checkpoint", "now", job, "--wait").stdout
    step = int(saved.split()[2].rstrip(":"))
    assert f"saving-{job}/step-{step} (" in saved and step in [info.step for info in one_host.get(job).job.checkpoints]
    assert f"step-{step}" in one_host.trainctl("checkpoint", "ls", job).stdout
    os.kill(one_host.get(job).pid_of(0), signal.SIGKILL)
    harness.wait_until(lambda: one_host.logs_of(job).count("first step") == 2, "the script runs again")
    last = int(one_host.logs_of(job).rpartition("first step ")[2].split()[0])
    assert last > step
    one_host.trainctl("cancel", job)
    assert one_host.wait_for_end(job).state_name == "CANCELLED"


def test_a_stopped_script_is_a_hang_and_is_restarted_if_the_job_requests_it(installed, one_host):
    job = submit_saving(installed, one_host, 1_000_000, on_hang="restart")

    os.kill(one_host.get(job).pid_of(0), signal.SIGSTOP)
    harness.wait_until(lambda: one_host.get(job).job.generation == 2, "the script is started again")

    assert "rank 0 on h1 is stopped (SIGSTOP, state T)" in one_host.trainctl("why", job).stdout
    one_host.trainctl("cancel", job)
    assert one_host.wait_for_end(job).state_name == "CANCELLED"


@pytest.mark.slow
@pytest.mark.parametrize("example, evaluates", [
    ("accelerate_train.py", False), pytest.param("lightning_train.py", True, marks=pytest.mark.long)])
def test_a_paused_script_of_a_library_saves_resumes_and_reports_every_step(installed, cluster, example, evaluates):
    cluster.start_coordinator()
    cluster.start_worker("h1", 2)
    job = cluster.submit_document({"name": "library", "resources": {"ranks": 2}, "command": {
        "argv": [sys.executable, str(LEAVING), str(PACKAGE / "examples" / example), str(cluster.folder / "saved"),
                 "400"],
        "env": [f"PYTHONPATH={installed}", "CUDA_VISIBLE_DEVICES="], "workdir": str(cluster.folder)}})
    cluster.wait_for_step(job, 5)

    cluster.trainctl("pause", job)
    cluster.wait_for_state(job, "PAUSED")
    assert (cluster.folder / "saved").exists() and cluster.get(job).job.last_step < 400
    cluster.trainctl("resume", job)

    view = cluster.wait_for_end(job)
    assert (view.state_name, view.job.last_step, view.job.restarts) == ("SUCCEEDED", 400, 0), cluster.logs_of(job)
    events = list(cluster.watch(job))
    steps = [event.step for event in events if event.HasField("step")]
    assert [step.step for step in steps] == list(range(1, 401))
    assert steps[0].lr == 0.01 and steps[-1].loss < steps[0].loss
    assert any(event.HasField("eval") for event in events) == evaluates


REPORTING = """
    import os, sys, time
    import trainyard
    for step in range(1, 41):
        time.sleep(0.05)
        trainyard.report(step, loss=1 / step, tokens=8)
        if step == 10 and os.environ["RANK"] == "0":
            while os.path.exists(sys.argv[1]): time.sleep(0.05)
    if os.environ["RANK"] == "1":
        import subprocess  # a child inherits the variables
        subprocess.run([sys.executable, "-c", "import trainyard; trainyard.report(1000)"])
"""


def test_a_script_reports_its_steps_also_after_its_daemon_was_killed(installed, cluster):
    script, barrier = cluster.folder / "reporting.py", cluster.folder / "barrier"
    script.write_text(textwrap.dedent(REPORTING))
    barrier.touch()
    cluster.start_coordinator()
    worker = cluster.start_worker("h1", 2)
    job = cluster.submit_document({"name": "reporting", "resources": {"ranks": 2}, "command": {
        "argv": [sys.executable, str(script), str(barrier)], "env": [f"PYTHONPATH={installed}"],
        "workdir": str(cluster.folder)}})
    cluster.wait_for_step(job, 10)

    worker.signal(signal.SIGKILL)
    worker.wait()
    cluster.start("worker", [harness.BIN / "trainyard-worker", "--coordinator", cluster.coordinator.address,
                             "--slots", "2", "--name", "h1", "--state", cluster.folder / "worker-h1"])
    barrier.unlink()

    view = cluster.wait_for_end(job)
    assert (view.state_name, view.job.last_step, view.job.restarts) == ("SUCCEEDED", 40, 0)
    steps = [event.step for event in cluster.watch(job) if event.HasField("step")]
    assert [(step.step, step.loss, step.tokens) for step in steps] == [(n, 1 / n, 8) for n in range(1, 41)]
    assert [rank.last_step for rank in view.job.ranks] == [40, 40]
    assert "40, loss 0.0250" in cluster.trainctl("status", job).stdout
    assert "step 1  loss 1.0000" in cluster.trainctl("watch", job).stdout


RANK = """
    import os, sys, time
    import torch
    import torch.distributed as distributed
    import trainyard
    distributed.init_process_group("gloo")
    rank, step = distributed.get_rank(), 0
    while not trainyard.should_stop():
        step += 1
        time.sleep(0.01)
        if rank == 1 and step == 5:
            os.kill(os.getpid(), 15)  # only one rank receives a signal
    print("stopped after", step, flush=True)
    distributed.destroy_process_group()
    os._exit(0)  # as in scripts/leave.py
"""


def test_ranks_agree_on_the_step_after_which_they_stop(installed, cluster):
    script = cluster.folder / "rank.py"
    script.write_text(textwrap.dedent(RANK))

    done = cluster.run_trainctl("launch", "--nproc-per-node=2", "--no-python", "env", f"PYTHONPATH={installed}",
                                sys.executable, script)

    assert sorted(done.stdout.splitlines()) == ["[default0]:stopped after 5", "[default1]:stopped after 5"]


TRAINER = """
    import os, sys
    import torch
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
    from trainyard import script
    from trainyard.integrations.transformers import ReportProgress, StopOnRequest
    import trainyard.integrations.transformers as integration

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x, labels=None):
            return {"loss": ((x * self.weight - labels) ** 2).mean()}

    class StopAt(torch.utils.data.Dataset):
        def __init__(self, item):
            self.item, self.reads = item, 0

        def __len__(self):
            return 80

        def __getitem__(self, i):
            self.reads += 1
            if self.reads == self.item:
                os.kill(os.getpid(), 15)
            return {"x": torch.tensor(float(i % 7)), "labels": torch.tensor(2.0 * (i % 7))}

    def train(folder, stop_at):
        script._received = False  # as in a new process
        callback = StopOnRequest()
        trainer = Trainer(Model(), TrainingArguments(folder, max_steps=10, per_device_train_batch_size=4, use_cpu=True,
                                                     report_to=[], save_strategy="no", disable_tqdm=True,
                                                     learning_rate=0.01, logging_steps=1),
                          train_dataset=StopAt(stop_at), callbacks=[callback, ReportProgress()])
        trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if os.path.isdir(folder) else None)
        print("result", callback.stopped, trainer.state.global_step, float(trainer.model.weight))

    reported = []
    integration.report = lambda step, **values: reported.append((step, sorted(values)))
    train(sys.argv[1] + "/a", 0)
    assert reported == [(step, ["grad_norm", "loss", "lr"]) for step in range(1, 11)], reported
    train(sys.argv[1] + "/b", 14)
    train(sys.argv[1] + "/b", 0)
"""


@pytest.mark.slow
def test_the_trainer_of_transformers_saves_on_request_and_resumes_with_the_same_result(installed, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINER))

    output = python(installed, script, tmp_path)

    undisturbed, stopped, resumed = (line.split()[1:] for line in output.splitlines() if line.startswith("result"))
    assert stopped[0] == "True" and 3 <= int(stopped[1]) < 10  # data is read ahead of the step
    assert undisturbed == resumed and undisturbed[:2] == ["False", "10"]
