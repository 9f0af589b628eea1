"""`cmake --install` and the Debian packages. The long test installs, upgrades and removes the packages in a root file
system that debootstrap makes, and starts the daemons with the commands of their units."""

import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

import harness
import manifests
import roots

BUILD = harness.BIN.parent
DEBIAN = manifests.DEPLOY / "debian"
PACKAGES = ("trainctl", "trainyard-coordinator", "trainyard-libtorch-", "trainyard-worker")
COMPONENTS = {"coordinator": {"trainyard-coordinator"}, "trainctl": {"trainctl"},
              "worker": {"trainyard-worker", "trainyard-shim", "trainyard-trainer", "libtrainyard_sentencepiece.so"}}


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_installs_programs_that_do_not_name_the_build_machine(tmp_path, component):
    done = run("cmake", "--install", BUILD, "--strip", "--component", component, "--prefix", tmp_path)

    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "bin").iterdir()} == COMPONENTS[component]
    for program in (tmp_path / "bin").iterdir():
        dynamic = run("readelf", "--dynamic", program).stdout
        paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic)
        assert all(path.startswith("$ORIGIN/") for text in paths for path in text.split(":")), paths
        assert ("libtorch" in dynamic) == (program.name == "trainyard-trainer")
    if component != "worker":
        (program,) = (tmp_path / "bin").iterdir()
        assert run(program, "--version").returncode == 0


def test_maintainer_scripts_are_valid_and_every_configuration_file_is_declared():
    for part in ("coordinator", "worker"):
        for script in ("postinst", "prerm", "postrm"):
            text = (DEBIAN / f"{script}.in").read_text().replace("@name@", part)
            done = run("sh", "-n", input=text)
            assert done.returncode == 0 and "@" not in text, done.stderr
            assert "\nset -e\n" in text
        declared = (DEBIAN / "conffiles.in").read_text().replace("@name@", part).split()
        assert declared == [f"/etc/trainyard/{part}.yaml"]
        assert (manifests.DEPLOY / "systemd" / f"{part}.yaml").exists()


def test_a_token_that_could_not_be_completed_is_made_again(tmp_path):
    text = (DEBIAN / "postinst.in").read_text().replace("@name@", "coordinator")
    script = text.replace("/etc/trainyard", str(tmp_path)).replace("/run/systemd/system", "/nonexistent")
    for program, line in (("systemd-sysusers", ""), ("systemd-tmpfiles", ""), ("chown", "exit 1\n")):
        (tmp_path / program).write_text(f"#!/bin/sh\n{line}")
        (tmp_path / program).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    failed = run("sh", "-s", "configure", input=script, env=environment)
    (tmp_path / "chown").write_text("#!/bin/sh\n")
    done = run("sh", "-s", "configure", input=script, env=environment)

    assert failed.returncode != 0 and done.returncode == 0, done.stderr
    assert re.fullmatch("[0-9a-f]{64}", (tmp_path / "token").read_text())
    assert not (tmp_path / "token.new").exists()


class Machine:
    """A bare Debian 12 in a folder."""

    def __init__(self, root):
        self.root = root
        done = run("/usr/sbin/debootstrap", "--variant=minbase", "bookworm", root, "http://deb.debian.org/debian")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")

    def run(self, *command, **options):
        return roots.run(self.root, command, **options)

    def apt(self, *arguments):
        return self.run("apt-get", "--yes", "-o", "Dpkg::Options::=--force-confold", "--no-install-recommends",
                        *arguments, DEBIAN_FRONTEND="noninteractive")

    def install(self, *packages):
        for package in packages:
            shutil.copy(package, self.root / "tmp")
        return self.apt("install", *[f"/tmp/{package.name}" for package in packages])

    def user(self):
        return self.run("sh", "-c", "echo $(id -u trainyard):$(id -g trainyard)").strip()

    def unit_command(self, unit):
        text = (self.root / f"lib/systemd/system/{unit}.service").read_text()
        assert "\nUser=trainyard\n" in text
        return shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])

    def edit(self, path, **values):
        """Sets keys of a configuration file, as an administrator would."""
        file = self.root / path
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))

    def status(self, package):
        return self.run("dpkg-query", "--show", "--showformat", "${Status} ${Version}", package, expect=None)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    roots.require("debootstrap", "dpkg-shlibdeps")
    folder = tmp_path_factory.mktemp("machine")
    yield Machine(folder / "root")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    roots.dev("package", "--no-build", "--output", folder)
    yield sorted(folder.glob("*.deb"))
    shutil.rmtree(folder)


def next_version(package, folder):
    """The package with a higher version and another default configuration, uncompressed."""
    content = folder / package.stem
    assert run("dpkg-deb", "--raw-extract", package, content).returncode == 0
    control = content / "DEBIAN" / "control"
    control.write_text(re.sub(r"^Version: .*$", "Version: 9.9.9", control.read_text(), flags=re.M))
    for config in (content / "etc" / "trainyard").glob("*.yaml"):
        config.write_text(config.read_text() + "log: {level: debug}\n")
    target = folder / package.name.replace("_0.1.0_", "_9.9.9_")
    assert run("dpkg-deb", "-Znone", "--root-owner-group", "--build", content, target).returncode == 0
    shutil.rmtree(content)
    return target


def start_unit(cluster, machine, unit, runs):
    """Starts the command of a unit, as its user. Makes the state folder first, as systemd would."""
    command = machine.unit_command(unit)
    state = machine.root / command[command.index("--state") + 1].lstrip("/")
    state.mkdir(parents=True, exist_ok=True)
    user, group = map(int, machine.user().split(":"))
    for folder in (state.parent, state):
        os.chown(folder, user, group)
        folder.chmod(0o700)
    return cluster.start(unit, roots.command(machine.root, command, f"{user}:{group}"),
                         env=roots.environment(binds=[(runs, "/srv/trainyard")]))


def check_completion_and_manual_pages(machine):
    for script in ("bash-completion/completions/trainctl", "zsh/vendor-completions/_trainctl",
                   "fish/vendor_completions.d/trainctl.fish"):
        assert "trainctl" in machine.run("cat", f"/usr/share/{script}")
    for page in ("man1/trainctl.1", "man1/trainctl-checkpoint-ls.1", "man8/trainyard-coordinator.8",
                 "man8/trainyard-worker.8"):
        assert ".SH NAME" in machine.run("gzip", "-cd", f"/usr/share/man/{page}.gz")


def refuses_new_programs(trainctl):
    """Without systemd nothing restarts the daemon, which must not start the trainer of the new version."""
    return "trainyard-shim was replaced after this daemon" in trainctl("cluster", "--json")


@pytest.mark.long
def test_packages_are_installed_run_a_job_and_are_upgraded_and_removed(cluster, machine, packages, tmp_path):
    assert len(packages) == len(PACKAGES)
    for package, name in zip(packages, PACKAGES):
        assert package.name.startswith(name), packages
    machine.install(*packages)

    token = machine.root / "etc/trainyard/token"
    user = machine.user()
    assert token.stat().st_mode & 0o777 == 0o640 and len(token.read_text().strip()) == 64
    assert f"{token.stat().st_uid}:{token.stat().st_gid}" == user
    verified = machine.run("systemd-analyze", "verify", "--man=no", "trainyard-coordinator.service",
                           "trainyard-worker.service", expect=None)
    assert "trainyard" not in verified, verified
    assert machine.run("trainctl", "--version").startswith("trainctl ")
    check_completion_and_manual_pages(machine)

    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(cluster.text, runs / "text.txt")
    job = cluster.write_job(train__steps=5, checkpoint__dir="/srv/trainyard/small",
                            train__data__text=["/srv/trainyard/text.txt"])
    shutil.copy(job, runs / "job.yaml")
    for path in [runs, *runs.iterdir()]:
        os.chown(path, *map(int, user.split(":")))
    address = f"127.0.0.1:{harness.free_port()}"
    machine.edit("etc/trainyard/coordinator.yaml", listen=address, metrics="")
    machine.edit("etc/trainyard/worker.yaml", coordinator=address, metrics="", health="", slots=2)
    coordinator = start_unit(cluster, machine, "trainyard-coordinator", runs)
    worker = start_unit(cluster, machine, "trainyard-worker", runs)

    def trainctl(*arguments, expect=0):
        return machine.run("trainctl", "--coordinator", address, "--token-file", "/etc/trainyard/token", *arguments,
                           binds=[(runs, "/srv/trainyard")], expect=expect)

    def attached():
        assert coordinator.alive() and worker.alive(), coordinator.output() + worker.output()
        listed = trainctl("cluster", "--json", expect=None)
        return True if '"attached":true' in listed else print(listed)

    harness.wait_until(attached, "the daemon is attached")
    submitted = trainctl("submit", "/srv/trainyard/job.yaml").strip().split()[-1]
    assert "SUCCEEDED" in trainctl("watch", submitted)
    assert trainctl("sample", "/srv/trainyard/small", "--prompt", "the", "--tokens", "5").startswith("the")

    upgrades = [next_version(package, tmp_path) for package in packages if "libtorch" not in package.name]
    before = token.read_text()
    machine.install(*upgrades)
    assert machine.status("trainyard-worker") == "install ok installed 9.9.9"
    assert token.read_text() == before
    harness.wait_until(lambda: refuses_new_programs(trainctl), "the old daemon refuses the new programs", 30)
    for part in ("coordinator", "worker"):
        config = yaml.safe_load((machine.root / f"etc/trainyard/{part}.yaml").read_text())
        assert "log" not in config and address in config.values(), config
    roots.stop(coordinator)
    assert coordinator.wait() == 0
    coordinator = start_unit(cluster, machine, "trainyard-coordinator", runs)
    harness.wait_until(lambda: submitted in trainctl("list", expect=None), "the restarted coordinator knows the job")
    harness.wait_until(attached, "the daemon attaches to it")
    for program in (worker, coordinator):
        roots.stop(program)
        assert program.wait() == 0

    machine.apt("remove", "trainyard-worker", "trainyard-coordinator")
    assert not (machine.root / "opt/trainyard/bin/trainyard-worker").exists()
    assert (machine.root / "etc/trainyard/worker.yaml").exists() and token.exists()
    assert (machine.root / "var/lib/trainyard/coordinator/store.db").exists()
    (machine.root / "etc/trainyard/viewer-token").write_text("an administrator has made this token\n")
    machine.apt("purge", "trainyard-worker", "trainyard-coordinator", "trainctl")
    assert not (machine.root / "etc/trainyard").exists() and not (machine.root / "var/lib/trainyard").exists()
    machine.apt("purge", packages[2].name.split("_")[0])
    assert not (machine.root / "opt/trainyard").exists()
