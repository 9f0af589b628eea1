"""`trainctl config` at a pseudo-terminal: a job file that trains, and files that Accelerate itself loads."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys

import harness
import pytest
import yaml

TRAINCTL = str(harness.BIN / "trainctl")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}
PROMPT = re.compile(rb"\? \[[^\n]*\] $|\? $|\(yes or no\) \[no\] $")


class Terminal:
    """A program at a pseudo-terminal, which is the only way to see what a person sees."""

    def __init__(self, folder, *arguments):
        self.output = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(TRAINCTL, [TRAINCTL, "config", *arguments], ENVIRONMENT)

    def wait_for_prompt(self):
        """Reads until a question is shown; returns what was shown since the last answer."""
        start = len(self.output)
        while not PROMPT.search(self.output[start:].replace(b"\r", b"")):
            assert self.read(), f"the program ended without a question, after the output {self.output[start:]}"
        return self.output[start:].decode()

    def read(self):
        ready, _, _ = select.select([self.fd], [], [], 30)
        assert ready, f"no output within 30 s after {self.output}"
        try:
            data = os.read(self.fd, 4096)
        except OSError:  # the program has ended
            return False
        self.output += data
        return bool(data)

    def type(self, text):
        os.write(self.fd, text.encode())

    def answer(self, text):
        self.wait_for_prompt()
        self.type(text + "\n")

    def exit_code(self):
        while self.read():
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def config(folder, *arguments, **keys):
    return subprocess.run([TRAINCTL, "config", *arguments], capture_output=True, text=True, timeout=60, cwd=folder,
                          env=ENVIRONMENT, stdin=subprocess.DEVNULL, **keys)


def corpus(folder):
    (folder / "corpus.txt").write_text("".join(f"line {i} of a text to train on\n" for i in range(4000)))


def test_a_dialogue_writes_a_job_that_validates(tmp_path):
    corpus(tmp_path)
    terminal = Terminal(tmp_path, "--set", "resources.ranks=1", "--set", "train.batch.global=4")
    # Accepts the default model, names the data, gives a wrong number of steps, asks for an explanation, and corrects
    # the number. The eight empty lines accept the defaults of all other questions.
    for line in ["", "corpus.txt", "none", "?", "3"]:
        terminal.answer(line)
    for _ in range(8):
        terminal.answer("")

    assert terminal.exit_code() == 0, terminal.output.decode()
    assert b"train.steps: " in terminal.output
    assert b"The number of updates of the weights." in terminal.output
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert job["train"]["steps"] == 3
    assert job["train"]["data"] == {"text": [str(tmp_path / "corpus.txt")]}
    subprocess.run([TRAINCTL, "validate", "job.yaml"], check=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True)


def test_arrow_keys_and_other_control_characters_are_refused_with_a_sentence(tmp_path):
    terminal = Terminal(tmp_path, "--accelerate")
    terminal.answer("\x1b[A")
    shown = terminal.wait_for_prompt()

    assert "control character" in shown
    terminal.type("\x04")
    assert terminal.exit_code() == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key, code", [("\x03", 130), ("\x04", 2)])
def test_ctrl_c_and_the_end_of_the_input_write_nothing(tmp_path, key, code):
    terminal = Terminal(tmp_path)
    terminal.answer("model")
    terminal.wait_for_prompt()
    terminal.type(key)

    assert terminal.exit_code() == code
    assert not list(tmp_path.iterdir())


def test_sigterm_ends_the_dialogue(tmp_path):
    terminal = Terminal(tmp_path)
    terminal.wait_for_prompt()
    os.kill(terminal.pid, signal.SIGTERM)

    assert terminal.exit_code() == 130


def test_an_existing_file_is_kept_unless_the_user_agrees(tmp_path):
    file = tmp_path / "accelerate.yaml"
    file.write_text("mine\n")
    kept = Terminal(tmp_path, "--accelerate")
    kept.answer("no")
    assert kept.exit_code() == 2
    assert file.read_text() == "mine\n"
    assert config(tmp_path, "--accelerate", "--yes").returncode == 2
    assert file.read_text() == "mine\n"

    replaced = Terminal(tmp_path, "--accelerate", "--yes", "--force")
    assert replaced.exit_code() == 0
    assert "compute_environment" in file.read_text()


def test_without_a_terminal_the_open_questions_are_listed(tmp_path):
    done = config(tmp_path)
    assert done.returncode == 2
    assert "standard input is no terminal" in done.stderr
    assert "train.data: Which data?" in done.stderr

    done = config(tmp_path, "--yes")
    assert done.returncode == 2
    assert "train.data" in done.stderr and "train.steps" not in done.stderr


def test_answers_set_and_yes_make_a_job_that_runs(tmp_path):
    corpus(tmp_path)
    (tmp_path / "part.yaml").write_text("train:\n  data: {text: [corpus.txt]}\n  seed: 7\n")

    done = config(tmp_path, "--yes", "--answers", "part.yaml", "--set", "train.steps=2", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["file"] == "job.yaml"
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["train"]["seed"] == 7
    run = subprocess.run([TRAINCTL, "run", "job.yaml"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True,
                         timeout=240)
    assert run.returncode == 0, run.stderr


def test_files_on_other_machines_cause_warnings(tmp_path):
    arguments = ("--yes", "--set", "train.data.text=[/data/of/the/hosts.txt]", "-o", "-")

    here, there = config(tmp_path, *arguments), config(tmp_path, *arguments, "--elsewhere")

    assert here.returncode == 2 and "/data/of/the/hosts.txt" in here.stderr
    assert there.returncode == 0 and "warning: train.data.text" in there.stderr
    assert "/data/of/the/hosts.txt" in there.stdout


def test_a_hostile_name_of_a_file_adds_no_keys(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x\ncommand: {argv: [sh]}.txt").write_text("text " * 10000)

    done = config(tmp_path, "--yes", "--set", "train.steps=1", "-o", "-")

    assert done.returncode == 2  # the file is not suggested
    assert "train.data" in done.stderr


@pytest.mark.slow
def test_accelerate_loads_every_kind_of_file_and_import_gives_the_same_keys(tmp_path):
    kinds = {"ddp": [], "zero2": ["--set", "parallel.offload.optimizer=true"], "zero3": [],
             "fsdp": ["--set", "train.precision=bf16", "--set", "parallel.recompute=blocks"]}
    for data, arguments in kinds.items():
        done = config(tmp_path, "--accelerate", "--yes", "--set", f"parallel.data={data}", "--set", "resources.ranks=2",
                      "-o", f"{data}.yaml", *arguments)
        assert done.returncode == 0, done.stderr
        text = subprocess.run([TRAINCTL, "import", f"{data}.yaml", "--json"], cwd=tmp_path, env=ENVIRONMENT,
                              capture_output=True, text=True, check=True).stdout
        job = yaml.safe_load(json.loads(text)["job"])
        assert job["parallel"]["data"] == data and job["resources"]["ranks"] == 2
    script = ("import sys; from accelerate.commands.config.config_args import load_config_from_file as load\n"
              "print([(c.distributed_type.value, c.num_processes, c.mixed_precision)"
              " for c in map(load, sys.argv[1:])])")
    loaded = subprocess.run([sys.executable, "-c", script, *(f"{data}.yaml" for data in kinds)], cwd=tmp_path,
                            capture_output=True, text=True, check=True, timeout=120).stdout
    assert eval(loaded) == [("MULTI_CPU", 2, "no"), ("DEEPSPEED", 2, "no"), ("DEEPSPEED", 2, "no"), ("FSDP", 2, "bf16")]
