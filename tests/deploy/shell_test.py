"""What the packages install for shells and for man: completion in real shells on a terminal, and manual pages as man
and its tools read them."""

import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

import harness

TRAINCTL = harness.BIN / "trainctl"
# For each shell: its command, and what to type so that it loads the script and trainctl prints its arguments.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"],
             "trainctl() {{ printf 'GOT=%s=END\\n' \"$*\"; }}; source {script}"),
    "zsh": (["zsh", "-f", "-i"],
            "autoload -U compinit; compinit -u -D; trainctl() {{ print -r -- \"GOT=$*=END\" }}; source {script}"),
    "fish": (["fish", "--no-config", "--interactive"],
             "function trainctl; echo \"GOT=$argv=END\"; end; source {script}"),
}


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command, folder):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm",
                                             "LC_ALL": "C.UTF-8", "fish_greeting": ""})
        self.seen = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, pattern, seconds=60):
        """Waits until the output after the previous match has this pattern, and returns the match."""
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:  # the shell has ended
                    raise AssertionError(f"the shell ended: {self.seen!r}") from None
        self.seen = self.seen[match.end():]
        return match

    def close(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@pytest.fixture(params=SHELLS)
def shell(request, tmp_path):
    command, setup = SHELLS[request.param]
    if not shutil.which(command[0]):
        pytest.fail(f"{command[0]} is missing; ./dev setup installs it")
    script = tmp_path / "completion"
    script.write_text(subprocess.run([TRAINCTL, "completion", request.param], capture_output=True, text=True,
                                     check=True, timeout=30).stdout)
    terminal = Terminal(command, tmp_path)
    # The terminal echoes what is typed. The quotes in re''ady keep wait_for from matching this echo.
    terminal.type(setup.format(script=script) + "; echo re''ady\n")
    terminal.wait_for(r"ready\s")
    yield terminal
    terminal.close()


@pytest.mark.parametrize("typed, completed", [
    ("trainctl va\t", "validate"), ("trainctl checkpoint ver\t", "checkpoint verify"),
    ("trainctl --coordinator h:1 run --resu\t", "--coordinator h:1 run --resume"),
    # Files are completed where no verb or option is expected.
    ("trainctl validate compl\t", "validate completion")])
def test_a_shell_completes_verbs_and_options(shell, typed, completed):
    shell.type(typed)
    shell.type("\n")

    assert shell.wait_for(r"GOT=(.*?)=END")[1].strip() == completed


def man_pages(folder, **variables):
    """{name: text} of all pages that trainctl writes, and those of the daemons."""
    done = subprocess.run([TRAINCTL, "help", "--man-pages", folder], capture_output=True, text=True, timeout=60,
                          env={"PATH": os.environ["PATH"], **variables})
    assert done.returncode == 0 and not done.stdout, done.stderr
    pages = {path.name: path.read_text() for path in folder.iterdir()}
    for program in ("trainyard-coordinator", "trainyard-worker"):
        printed = subprocess.run([harness.BIN / program, "--print-man"], capture_output=True, text=True, timeout=60,
                                 env={"PATH": os.environ["PATH"], **variables})
        assert printed.returncode == 0, printed.stderr
        pages[f"{program}.8"] = printed.stdout
    return pages


def rendered(text):
    """A page as a terminal shows it. Fails if groff warns."""
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-P-cbou", "-rLL=200n"], input=text, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def verbs_of_help(*verbs):
    """The verbs and long options that --help lists."""
    text = subprocess.run([TRAINCTL, "help", *verbs], capture_output=True, text=True, check=True, timeout=30).stdout
    options = set(re.findall(r"^ {2,}(?:-\w,? ?)?(--[\w-]+)", text, re.M))
    listed = text.partition("Subcommands:")[2].partition("\n\n")[0]
    return set(re.findall(r"^  (\w[\w-]*)", listed, re.M)), options


def test_every_verb_has_a_manual_page_with_the_options_of_its_help(tmp_path):
    pages = man_pages(tmp_path / "pages")

    def check(*verbs):
        name = "-".join(["trainctl", *verbs])
        text = rendered(pages.pop(f"{name}.1"))
        subverbs, options = verbs_of_help(*verbs)
        assert options or not verbs
        missing = [word for word in options | subverbs if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)]
        assert not missing, f"the page {name} lacks {missing}"
        for verb in subverbs:
            check(*verbs, verb)

    check()
    assert set(pages) == {"trainyard-coordinator.8", "trainyard-worker.8"}
    for name, page in pages.items():
        helped = subprocess.run([harness.BIN / name[:-2], "--help"], capture_output=True, text=True, timeout=30).stdout
        assert set(re.findall(r"^ {2}(--[\w-]+)", helped, re.M)) - {"--help"} <= set(re.findall(r"--[\w-]+",
                                                                                               rendered(page)))


def test_manual_pages_can_be_found_by_whatis_and_copied_from(tmp_path):
    pages = man_pages(tmp_path)
    for name, page in pages.items():
        path = tmp_path / name
        path.write_text(page)
        found = subprocess.run(["lexgrog", path], capture_output=True, text=True, timeout=30)
        assert found.returncode == 0 and f'"{name[:-2]} - ' in found.stdout, found.stdout + found.stderr
    example = rendered(pages["trainctl-completion.1"])
    # The page has the quotes and hyphens that a shell needs, not typographic ones.
    assert "source <(trainctl completion bash)" in example
    assert "trainctl completion fish > ~/.config/fish/completions/trainctl.fish" in example
    assert all(page.isascii() for page in pages.values())


def test_manual_pages_do_not_depend_on_the_user_and_machine_that_make_them(tmp_path):
    here = man_pages(tmp_path / "1", HOME=str(tmp_path), TRAINYARD_COORDINATOR="unix:/nowhere", USER="a")
    there = man_pages(tmp_path / "2", HOME="/nonexistent", TRAINYARD_TOKEN_FILE="/nowhere", LC_ALL="C")

    assert here == there


def test_a_folder_for_pages_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")

    done = subprocess.run([TRAINCTL, "help", "--man-pages", tmp_path / "file" / "x"], capture_output=True, text=True,
                          timeout=30)

    assert done.returncode != 0 and str(tmp_path / "file") in done.stderr
