"""Reports of a script, sent to a daemon that this test plays."""

import concurrent.futures
import os
import queue
import subprocess
import sys
import textwrap
import urllib.parse

import grpc
import pytest

from trainyard import schema


class Daemon(grpc.GenericRpcHandler):
    """Accepts links at a socket and stores what they send."""

    def __init__(self, path):
        self.messages = queue.Queue()
        self.refuse = None
        self.save_requests = 0
        self._refused = path.with_name("refused")
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{urllib.parse.quote(str(path))}")
        self._server.start()

    def service(self, details):
        assert details.method == "/trainyard.v1.TrainerLink/Connect"
        return grpc.stream_stream_rpc_method_handler(self.connect,
                                                     request_deserializer=schema.TrainerMessage.FromString,
                                                     response_serializer=schema.LinkMessage.SerializeToString)

    def connect(self, requests, context):
        if self.save_requests:
            yield schema.LinkMessage(save=schema.SaveTrainer(request=self.save_requests))
        for message in requests:
            self.messages.put(message)
            if self.refuse is not None and message.WhichOneof("kind") == "report":
                code, self.refuse = self.refuse, None
                self._refused.touch()
                context.abort(code, "refused")

    def close(self):
        self._server.stop(0).wait()

    def received(self):
        """The kinds of all messages, and the reports."""
        messages = [self.messages.get() for _ in range(self.messages.qsize())]
        return [message.WhichOneof("kind") for message in messages], [message.report for message in messages
                                                                      if message.HasField("report")]


@pytest.fixture
def daemon(tmp_path):
    daemon = Daemon(tmp_path / "link")
    yield daemon
    daemon.close()


def run(tmp_path, text, rank="0", daemon=None, until=None, **variables):
    """Runs a script. With `until`: creates the file "seen" once the daemon's reports satisfy it."""
    environment = {**os.environ, "TRAINYARD_LINK": str(tmp_path / "link"), "TRAINYARD_TOKEN": "t" * 20,
                   "TRAINYARD_JOB_ID": "abcdefgh", "TRAINYARD_GENERATION": "2", "TRAINYARD_RANK": rank, "RANK": rank,
                   **variables}
    command = [sys.executable, "-c", "import os, sys, time, trainyard\n" + textwrap.dedent(text)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if until is not None:
        taken = []
        while process.poll() is None:
            taken.append(daemon.messages.get(timeout=60))
            if until([message.report for message in taken if message.HasField("report")]):
                break
        (tmp_path / "seen").touch()
        for message in taken:
            daemon.messages.put(message)
    output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def test_steps_and_evaluations_of_rank_zero_are_sent_before_the_script_ends(daemon, tmp_path):
    done = run(tmp_path, """
        for step in range(1, 301):
            trainyard.report(step, loss=1 / step, tokens=10, lr=0.5)
        trainyard.report_eval(300, float("nan"), seconds=2)
        assert "grpc" not in sys.modules
    """)

    kinds, reports = daemon.received()
    assert (done.returncode, done.stderr) == (0, "")
    assert kinds[0] == "register" and set(kinds[1:]) == {"report"}
    steps = [step for report in reports for step in report.steps]
    assert [step.step for step in steps] == list(range(1, 301))
    assert (steps[1].loss, steps[1].tokens, steps[1].lr) == (0.5, 10, 0.5) and 0 < steps[1].step_s < 1
    assert [(one.step, one.seconds) for report in reports for one in report.evals] == [(300, 2.0)]
    assert (reports[-1].key.job_id, reports[-1].key.generation, reports[-1].last_step) == ("abcdefgh", 2, 300)


def test_the_socket_of_the_daemon_may_have_any_path(tmp_path):
    folder = tmp_path / "c# 50%23?"
    folder.mkdir()
    daemon = Daemon(folder / "link")

    done = run(folder, "trainyard.report(1, loss=1)")

    _, reports = daemon.received()
    daemon.close()
    assert (done.returncode, done.stderr) == (0, "")
    assert [step.step for report in reports for step in report.steps] == [1]


def test_other_ranks_report_only_their_last_step(daemon, tmp_path):
    done = run(tmp_path, "trainyard.report(7, loss=object())", rank="3")

    _, reports = daemon.received()
    assert done.returncode == 0, done.stderr
    assert {(report.key.rank, report.last_step, len(report.steps)) for report in reports} == {(3, 7, 0)}


def test_what_was_sent_on_a_broken_link_is_sent_again(daemon, tmp_path):
    daemon.refuse = grpc.StatusCode.UNAVAILABLE

    done = run(tmp_path, """
        trainyard.report(1, loss=1)
        while not os.path.exists(os.environ["TRAINYARD_LINK"].replace("link", "refused")): time.sleep(0.01)
        trainyard.report(2, loss=2)
    """)

    kinds, reports = daemon.received()
    assert done.returncode == 0, done.stderr
    assert kinds.count("register") == 2
    steps = [step.step for report in reports for step in report.steps]
    assert steps[:2] == [1, 1] and steps[-1] == 2


def test_a_permanently_refused_link_ends_without_disturbing_the_script(daemon, tmp_path):
    daemon.refuse = grpc.StatusCode.NOT_FOUND

    done = run(tmp_path, """
        trainyard.report(1, loss=1)
        trainyard._report._channel.helper.wait()
        trainyard.report(2)
        print("end")
    """)

    assert done.stdout == "end\n" and "no more is reported" in done.stderr
    assert daemon.received()[0].count("register") == 1


@pytest.mark.parametrize("variables, warned", [
    ({"TRAINYARD_LINK": ""}, ""), ({"RANK": "1"}, "another launcher"), ({"TRAINYARD_LINK": "/nowhere/link"}, ""),
])
def test_without_a_daemon_a_script_runs_unchanged(tmp_path, variables, warned):
    done = run(tmp_path, "trainyard.report(1, loss=1.0); print('end')", **variables)

    assert (done.returncode, done.stdout) == (0, "end\n")
    assert warned in done.stderr and "Traceback" not in done.stderr


def test_an_entry_of_sys_path_that_is_no_text_is_left_out_as_by_python(daemon, tmp_path):
    done = run(tmp_path, """
        import pathlib
        sys.path.append(pathlib.Path("."))
        trainyard.report(1, loss=1)
    """)

    assert (done.returncode, done.stderr) == (0, "")
    assert [step.step for report in daemon.received()[1] for step in report.steps] == [1]


def test_a_frozen_program_is_not_started_a_second_time(daemon, tmp_path):
    """PyInstaller and cx_Freeze set sys.frozen, and sys.executable is the program itself."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o700)

    done = run(tmp_path, f"""
        sys.frozen, sys.executable = True, {str(program)!r}
        trainyard.report(1, loss=1)
        print("end")
    """)

    assert (done.returncode, done.stdout) == (0, "end\n")
    assert f"{program} is not Python, but a frozen program" in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_forked_process_reports_nothing_and_ends(daemon, tmp_path):
    done = run(tmp_path, """
        trainyard.report(1, loss=1)
        if os.fork() == 0:
            trainyard.report(2, loss=2)
            sys.exit(0)
        print(os.wait()[1])
    """)

    assert done.stdout == "0\n", done.stderr
    assert [step.step for report in daemon.received()[1] for step in report.steps] == [1]


def test_a_forked_process_that_lives_on_does_not_delay_the_end_of_a_script(daemon, tmp_path):
    done = run(tmp_path, """
        trainyard.report(1, loss=1)
        main = os.getpid()
        if os.fork() == 0:
            while os.getppid() == main: time.sleep(0.01)
            os._exit(0)
        helper = trainyard._report._channel.helper
        wait = helper.wait
        helper.wait = lambda limit: print(wait(50))
    """)

    assert done.stdout == "0\n", done.stderr
    assert [step.step for report in daemon.received()[1] for step in report.steps] == [1]


def test_wrong_values_are_refused_and_steps_that_do_not_increase_are_left_out(daemon, tmp_path):
    done = run(tmp_path, """
        for wrong in (lambda: trainyard.report(1.5), lambda: trainyard.report(True),
                      lambda: trainyard.report(1, loss="high")):
            try:
                wrong()
            except TypeError as error:
                print(error)
        trainyard.report(5, loss=5)
        trainyard.report(5, loss=6)
        trainyard.report(10**13)
    """)

    assert done.stdout.count("expected a") == 3
    assert "steps must increase" in done.stderr
    assert [step.loss for report in daemon.received()[1] for step in report.steps] == [5]


def test_the_last_step_is_reported_again_while_the_script_makes_no_progress(daemon, tmp_path):
    done = run(tmp_path, """
        trainyard.report(1, loss=1)
        trainyard.report(2, loss=2)
        while not os.path.exists(os.environ["TRAINYARD_LINK"].replace("link", "seen")): time.sleep(0.01)
    """, daemon=daemon, until=lambda reports: len(reports) > 0 and reports[-1].phase_s > 1.5)

    _, reports = daemon.received()
    assert done.returncode == 0, done.stderr
    assert {report.phase for report in reports} == {"train"} and reports[-1].last_step == 2
    assert sum(time.longest_s for report in reports for time in report.phase_times) > 0


def test_a_phase_is_reported_with_its_duration_which_counts_for_no_step(daemon, tmp_path):
    done = run(tmp_path, """
        trainyard.report(1, loss=1)
        with trainyard.phase("evaluate"):
            time.sleep(0.6)
        trainyard.report(2, loss=2)
    """)

    _, reports = daemon.received()
    assert done.returncode == 0, done.stderr
    times = {time.phase: time.longest_s for report in reports for time in report.phase_times}
    assert times["evaluate"] >= 0.6 and times["train"] < 0.5
    assert reports[-1].phase == "train" and reports[-1].steps[-1].step_s < 0.5
    assert "ValueError: phase: expected" in run(tmp_path, 'with trainyard.phase("rest"): pass').stderr


def test_the_evaluations_of_transformers_and_lightning_are_phases(daemon, tmp_path):
    done = run(tmp_path, """
        import types
        for name, base in (("transformers", "TrainerCallback"), ("lightning.pytorch.callbacks", "Callback")):
            sys.modules[name] = types.ModuleType(name)
            setattr(sys.modules[name], base, object)
        from trainyard.integrations import lightning, transformers
        trainyard.report(1, loss=1)
        trainer, state = transformers.ReportProgress(), types.SimpleNamespace(global_step=1)
        trainer.on_log(None, types.SimpleNamespace(global_step=0), None, logs={"eval_loss": 9.0})  # eval_on_start
        for _ in range(2):
            trainer.on_prediction_step(None, state, None)
            print(trainyard._report._channel.phase())
        trainer.on_log(None, state, None, logs={"eval_loss": 2.0})
        trainer.on_evaluate(None, state, None, metrics={})
        print(trainyard._report._channel.phase())
        progress = lightning.ReportProgress()
        fit = types.SimpleNamespace(global_step=2, sanity_checking=False, callback_metrics={"val_loss": 3.0})
        progress.on_validation_start(fit, None)
        print(trainyard._report._channel.phase())
        progress.on_validation_end(fit, None)
        print(trainyard._report._channel.phase())
    """)

    _, reports = daemon.received()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["evaluate", "evaluate", "train", "evaluate", "train"]
    assert [(one.step, one.loss) for report in reports for one in report.evals] == [(1, 2.0), (2, 3.0)]


def test_nested_phases_and_reports_inside_of_them_give_no_negative_times(daemon, tmp_path):
    done = run(tmp_path, """
        with trainyard.phase("load"): pass
        trainyard.report(1)
        with trainyard.phase("evaluate"):
            with trainyard.phase("save"): time.sleep(0.2)
            trainyard.report(2)
            time.sleep(0.3)
        trainyard.report(3)
    """)

    _, reports = daemon.received()
    assert done.returncode == 0, done.stderr
    steps = {step.step: step.step_s for report in reports for step in report.steps}
    assert all(0 <= seconds < 0.2 for seconds in steps.values()), steps
    assert all(time.longest_s > 0 for report in reports for time in report.phase_times)


def test_a_checkpoint_of_a_step_that_was_saved_before_answers_a_new_request(daemon, tmp_path):
    daemon.save_requests = 1

    done = run(tmp_path, """
        folder = trainyard.checkpoint_dir()
        trainyard.report(10)
        trainyard.saved(10, folder)
        while not trainyard.should_save(): time.sleep(0.01)
        trainyard.saved(10, folder)
        trainyard.report(12)
    """, TRAINYARD_CHECKPOINT_DIR=str(tmp_path / "runs/a"))

    _, reports = daemon.received()
    assert (done.returncode, done.stderr) == (0, "")
    assert (reports[-1].script_checkpoint.step, reports[-1].script_checkpoint.save_request) == (10, 1)


def test_the_end_of_a_script_waits_longer_for_a_checkpoint_than_for_steps(daemon, tmp_path):
    text = """
        trainyard.report(1)
        if {saves}: trainyard.saved(1, trainyard.checkpoint_dir())
        helper = trainyard._report._channel.helper
        wait = helper.wait
        helper.wait = lambda limit: print(limit, wait(limit))
    """
    variables = {"TRAINYARD_CHECKPOINT_DIR": str(tmp_path / "runs/a")}

    assert run(tmp_path, text.format(saves=False), **variables).stdout == "2.0 0\n"
    assert run(tmp_path, text.format(saves=True), **variables).stdout == "10.0 0\n"


def test_a_script_with_many_open_files_reports_its_checkpoints(daemon, tmp_path):
    done = run(tmp_path, """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        trainyard.saved(5, trainyard.checkpoint_dir())
    """, TRAINYARD_CHECKPOINT_DIR=str(tmp_path / "runs/a"))

    _, reports = daemon.received()
    assert (done.returncode, done.stderr) == (0, "")
    assert reports[-1].script_checkpoint.step == 5


def test_a_save_that_began_before_a_request_does_not_answer_it(daemon, tmp_path):
    daemon.save_requests = 1

    done = run(tmp_path, """
        folder = trainyard.checkpoint_dir()
        trainyard.report(20)
        while not trainyard.should_save(): time.sleep(0.01)
        trainyard.saved(10, folder)
    """, TRAINYARD_CHECKPOINT_DIR=str(tmp_path / "runs/a"))

    _, reports = daemon.received()
    assert (done.returncode, done.stderr) == (0, "")
    assert (reports[-1].script_checkpoint.step, reports[-1].script_checkpoint.save_request) == (10, 0)


def test_each_of_several_checkpoints_within_a_moment_is_reported_in_order(daemon, tmp_path):
    done = run(tmp_path, """
        folder = trainyard.checkpoint_dir()
        for step in range(1, 31):
            trainyard.report(step)
            trainyard.saved(step, folder)
    """, TRAINYARD_CHECKPOINT_DIR=str(tmp_path / "runs/a"))

    _, reports = daemon.received()
    assert (done.returncode, done.stderr) == (0, "")
    steps = [report.script_checkpoint.step for report in reports if report.HasField("script_checkpoint")]
    assert steps == sorted(steps)
    assert set(range(11, 31)) <= set(steps), "the newest 20 checkpoints must be reported"


def test_a_request_to_save_is_answered_by_a_checkpoint(daemon, tmp_path):
    daemon.save_requests = 2

    done = run(tmp_path, """
        folder = trainyard.checkpoint_dir()
        assert trainyard.last_checkpoint() is None
        saves = 0
        for step in range(1, 2000):
            trainyard.report(step)
            if trainyard.should_save():
                saves += 1
                (folder / "model").write_text("weights")
                trainyard.saved(step, folder)
            if saves and step > 5: break
            time.sleep(0.01)
        print("saves", saves, step, trainyard.should_save())
    """, TRAINYARD_CHECKPOINT_DIR=str(tmp_path / "runs/a"))

    _, reports = daemon.received()
    assert done.stderr == "" and done.stdout.startswith("saves 1 ") and done.stdout.endswith("False\n")
    assert any(report.saves_on_request for report in reports)
    checkpoint = reports[-1].script_checkpoint
    assert (checkpoint.path, checkpoint.size_bytes, checkpoint.save_request) == (str(tmp_path / "runs/a"), 7, 2)
    assert 0 < checkpoint.step and not any(step.HasField("loss") for report in reports for step in report.steps)


def test_without_trainyard_nothing_is_requested_and_checkpoints_have_a_folder(tmp_path):
    done = run(tmp_path, f"""
        os.chdir({str(tmp_path)!r})
        assert not trainyard.should_save() and trainyard.last_checkpoint() is None
        (trainyard.checkpoint_dir() / "model").write_text("weights")
        trainyard.saved(1, "checkpoints/model")
        try:
            trainyard.saved(2, "checkpoints/missing")
        except FileNotFoundError as error:
            print(error.filename)
    """, TRAINYARD_LINK="", TRAINYARD_RANK="")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/checkpoints/missing\n"


@pytest.mark.parametrize("outer, rank, raises", [
    ("", "", True), ("", "0", True), ("", "8", False), ("0", "0", True), ("8", "8", False), ("0", "1", False),
], ids=["one process", "torchrun 0", "torchrun 8", "Trainyard 0", "Trainyard 8", "torchrun 1 inside of Trainyard 0"])
def test_a_checkpoint_that_does_not_exist_is_an_error_of_rank_zero_alone(tmp_path, outer, rank, raises):
    """Without shared storage, only the host of rank 0 has it."""
    done = run(tmp_path, f"trainyard.saved(1, {str(tmp_path / 'missing')!r})", TRAINYARD_LINK="",
               TRAINYARD_RANK=outer, RANK=rank)

    assert ("FileNotFoundError" in done.stderr, done.returncode) == (raises, int(raises))
