"""The claims of the documents: the README's commands run unchanged, and the table of requirements is complete."""

import os
import pathlib
import re
import socket
import subprocess

import pytest

import harness
import processes

BLOCK = re.compile(r"^```sh run( background)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
README_PORT = 7070
# Parts of the README's commands, and what replaces them where a test needs the commands but no trained model.
FEWER_STEPS = {"./dev demo": "./dev demo --set train.steps=60", "train.steps=400": "train.steps=40",
               "train.steps=3": "train.steps=1"}


def readme_script(replaced):
    """Returns one bash script of the README's marked blocks, in order. A user runs a block marked
    `background` in another terminal. The script runs it in parallel with the next block, which starts when the
    coordinator's port accepts connections. `replaced`: parts of commands and what to write instead."""
    parts = ["set -euo pipefail", "trap 'kill $(jobs -p)' EXIT"]
    for background, body in BLOCK.findall((harness.ROOT / "README.md").read_text()):
        if background:
            parts.append(f"( exec {body.strip()} ) &")
            parts.append(f"for _ in $(seq 200); do "
                         f"(: </dev/tcp/127.0.0.1/{README_PORT}) 2>/dev/null && break; sleep 0.05; done")
        else:
            parts.append(body.strip())
    script = "\n".join(parts) + "\n"
    for part, instead in replaced.items():
        script, count = re.subn(rf"{re.escape(part)}(?=\)?$)", instead, script, flags=re.MULTILINE)
        assert count, f"no command of the README ends with {part}"
    return script


def port_is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def run_readme(tmp_path, replaced):
    assert port_is_free(README_PORT), f"port {README_PORT} is in use: first end the coordinator on this machine"
    processes.start_reaper()
    log = tmp_path / "readme.log"
    # A folder of links to the checkout, except to its runs and state, so that the commands do not change those.
    work = tmp_path / "checkout"
    work.mkdir()
    for entry in harness.ROOT.iterdir():
        if entry.name not in ("trainyard-runs", "trainyard-state"):
            (work / entry.name).symlink_to(entry)
    try:
        with log.open("wb") as out:
            code = subprocess.run(["bash", "-c", readme_script(replaced)], cwd=work, stdout=out,
                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=1500,
                                  env={**os.environ}).returncode
    finally:
        processes.kill_descendants()
    text = log.read_text(errors="replace")
    assert code == 0, text[-6000:]
    assert "SUCCEEDED" in text


@pytest.mark.slow
def test_the_commands_of_the_readme_run_with_fewer_steps(tmp_path):
    run_readme(tmp_path, FEWER_STEPS)


@pytest.mark.long
def test_the_commands_of_the_readme_run_unchanged(tmp_path):
    run_readme(tmp_path, {})


def requirement_rows():
    """{number: (state, evidence)}; the evidence is the last column, "Shown by, or what is missing"."""
    rows = {}
    for line in (harness.ROOT / "docs" / "requirements.md").read_text().splitlines():
        match = re.match(r"^\| (\d+) \| (.+?) \| (.+?) \|(.*)\|$", line)
        if match:
            assert int(match[1]) not in rows, f"row {match[1]} occurs twice"
            rows[int(match[1])] = (match[3], match[4].strip())
    return rows


def test_every_requirement_has_one_row_with_a_state():
    rows = requirement_rows()

    assert sorted(rows) == list(range(1, 133))
    assert {state for state, _ in rows.values()} <= {"works", "not yet", "out of scope"}
    without_evidence = [number for number, (state, evidence) in rows.items() if state != "not yet" and not evidence]
    assert not without_evidence


def test_files_that_the_requirements_name_exist():
    for number, (_, evidence) in requirement_rows().items():
        for path in re.findall(r"`((?:tests|worker|bench|configs)/[\w./-]+)`", evidence):
            assert (harness.ROOT / path).exists(), f"row {number} names {path}"


def test_links_in_the_documents_point_to_existing_files():
    for document in [harness.ROOT / "README.md", harness.ROOT / "CONTRIBUTING.md",
                     *(harness.ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            path = pathlib.Path(document.parent / target)
            assert path.exists(), f"{document.relative_to(harness.ROOT)} links to {target}, which does not exist"


# Where a path in a document may begin, in addition to the folder of the document, and how its name may be shortened.
BASES = (".", "coordinator", "worker", "tests")
SUFFIXES = ("", ".h", ".cc", ".proto", ".py", ".md", ".sh")
# These are not files of the checkout: absolute paths, folders in a run folder, and a header of Abseil.
FOREIGN = re.compile(r"/|step-N|absl/")


def alternatives(path):
    """Expands the braces of a path: 'a/{b,c}' names 'a/b' and 'a/c'."""
    braces = re.search(r"\{([^{}]*)\}", path)
    if not braces:
        return [path]
    return [expanded for choice in braces[1].split(",")
            for expanded in alternatives(path[:braces.start()] + choice + path[braces.end():])]


def names_a_file(document, path):
    folders = [document.parent, *(harness.ROOT / base for base in BASES)]
    return any(next(folder.glob(path.rstrip("/") + suffix), None) for folder in folders for suffix in SUFFIXES)


def test_paths_in_the_architecture_and_the_readmes_of_folders_exist():
    rooms = [path for pattern in ("*/README.md", "*/*/README.md") for path in harness.ROOT.glob(pattern)
             if not path.relative_to(harness.ROOT).parts[0].startswith((".", "build", "shared"))]
    assert len(rooms) > 15
    for document in [harness.ROOT / "ARCHITECTURE.md", harness.ROOT / "CONTRIBUTING.md", *rooms]:
        name = document.relative_to(harness.ROOT)
        text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (document.parent / target).exists(), f"{name} links to {target}, which does not exist"
        for path in re.findall(r"`([\w.*{},/-]*/[\w.*{},/-]*)`", text):
            for one in [] if FOREIGN.match(path) else alternatives(path):
                assert names_a_file(document, one), f"{name} names {one}, which does not exist"


def table_of_the_architecture(name):
    """Returns the text of ARCHITECTURE.md between the two comments that enclose the table of this name."""
    text = (harness.ROOT / "ARCHITECTURE.md").read_text()
    return text.split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->")[0]


@pytest.mark.parametrize("table", ["lifecycle", "events"])
def test_the_architecture_shows_the_table_that_the_code_uses(table):
    printed = subprocess.run([harness.BIN / "trainyard-coordinator", f"--print-{table}"], check=True,
                             capture_output=True, text=True).stdout

    assert table_of_the_architecture(table) == printed


def test_each_event_of_the_coordinator_has_a_handler_file_of_its_name():
    names = re.findall(r"^\| ([A-Z]\w+) \| [a-z]", table_of_the_architecture("events"), re.M)
    events = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names}

    handlers = {path.stem for path in (harness.ROOT / "coordinator" / "handlers").glob("*.cc")
                if "\nvoid Run(Turn& turn, " in path.read_text()}
    assert events == handlers
