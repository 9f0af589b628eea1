"""Every command line of the images, manifests and units is run with the real programs, on loopback and in a temporary
folder, until a job has succeeded. compose_test.py does the same for docker-compose.yml."""

import pathlib
import re
import subprocess

import pytest

import harness
import local
import manifests

FORMS = {"kubernetes-cpu": lambda: manifests.kubernetes_commands("cpu"),
         "kubernetes-gpu": lambda: manifests.kubernetes_commands("gpu"),
         "systemd": manifests.systemd_commands}


@pytest.mark.parametrize("form", FORMS)
def test_the_command_lines_start_a_cluster_that_runs_a_job(cluster, form):
    paths = local.Local(cluster.folder)
    commands = FORMS[form]()

    workers = local.start(cluster, paths, commands)

    assert workers >= 1
    named = any("token" in part for part in sum(commands, [])) or form == "systemd"
    token = ["--token-file", paths.token] if named else []
    local.wait_until_attached(cluster, workers, *token)
    job = cluster.write_job(train__steps=3, resources__ranks=1)
    submitted = cluster.trainctl(*token, "submit", job).stdout.strip()
    assert "SUCCEEDED" in cluster.trainctl(*token, "watch", submitted).stdout


def test_the_command_line_of_the_image_of_the_coordinator_starts(cluster):
    paths = local.Local(cluster.folder)

    local.start(cluster, paths, [[part.replace("127.0.0.1:7070", "head:7070") for part in command]
                                 for command in manifests.dockerfile_commands()])

    def answers():
        assert cluster.coordinator.alive(), cluster.coordinator.output()
        return cluster.trainctl("list", expect=None).returncode == 0

    harness.wait_until(answers, "the coordinator answers")


def test_a_wrong_flag_in_a_command_line_is_noticed(cluster):
    paths = local.Local(cluster.folder)
    command = paths.command(manifests.compose_commands()[0] + ["--no-such-flag"])

    program = cluster.start("coordinator", command)

    assert program.wait() == 2 and "--no-such-flag" in program.output()


# The programs in each image.
PROGRAMS = {"coordinator": ("trainyard-coordinator", "trainctl"),
            "trainctl": ("trainctl",),
            "worker": ("trainyard-worker", "trainyard-shim", "trainyard-trainer", "libtrainyard_sentencepiece.so",
                       "trainctl")}


def packages_needed(programs):
    """The Debian packages of the libraries that programs load, without LibTorch and its libraries, which are copied."""
    libraries = set()
    for name in programs:
        listed = subprocess.run(["ldd", harness.BIN / name], capture_output=True, text=True, check=True).stdout
        libraries |= set(re.findall(r"=> (/(?:lib|usr/lib)/\S+)", listed))
    owners = subprocess.run(["dpkg", "-S", *{str(pathlib.Path(path).resolve()) for path in libraries}],
                            capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"^([^:\n]+)", owners, re.M))


def with_dependencies(packages):
    depends = subprocess.run(["apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts",
                              "--no-breaks", "--no-replaces", "--no-enhances", *packages],
                             capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^(\S+)$", depends, re.M))


@pytest.mark.parametrize("image", PROGRAMS)
def test_an_image_contains_every_library_that_its_programs_load(image):
    needed = packages_needed(PROGRAMS[image])
    packages = manifests.image_packages()[image]

    assert "libgrpc++1.51" in needed and "tini" in packages
    assert not needed - with_dependencies(packages)


def test_the_guide_installs_the_libraries_of_all_images():
    guide = (harness.ROOT / "docs" / "operators.md").read_text()
    installed = set(re.findall(r"\blib[\w.+-]+", guide.split("apt-get install libgrpc")[1].split("```")[0]))

    assert installed | {"libgrpc++1.51"} == {name for packages in manifests.image_packages().values()
                                             for name in packages if name.startswith("lib")}
