"""The images of deploy/Dockerfile. The long test builds them with buildah from the programs in build/ on a base that
debootstrap makes, and starts them as a container runtime would."""

import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys

import pytest

import harness
import manifests
import roots

SBOM = manifests.DEPLOY / "image" / "sbom.py"
IMAGES = ("coordinator", "trainctl", "worker")


def test_every_image_has_labels_the_version_another_user_and_an_init():
    for image in IMAGES:
        labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', manifests.instruction(image, "LABEL")))
        assert labels["title"] == f"trainyard-{image}" and labels["licenses"] == "Apache-2.0"
        assert labels["version"] == "${VERSION}" and labels["revision"] == "${REVISION}"
        assert ("ARG", f"VERSION={manifests.VERSION}") in manifests.stages()[image]
        assert manifests.instruction(image, "USER") == "1000:1000"
        assert image in manifests.entry_points()
    text = (manifests.DEPLOY / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (?:--\S+ )?(\S+)", text, re.M)
    assert set(bases) - set(manifests.stages()) == {
        "${DEBIAN}", "${PROGRAMS}", "${PROGRAMS}-control", "${PROGRAMS}-cuda", "scratch"}
    assert re.search(r"^ARG DEBIAN=docker\.io/library/debian:bookworm-\d{8}$", text, re.M)


def test_the_health_checks_of_images_are_commands_that_trainctl_accepts():
    for image in ("coordinator", "worker"):
        check = manifests.health_check(image)
        assert check[:2] == ["/opt/trainyard/bin/trainctl", "health"]
        done = subprocess.run([harness.BIN / "trainctl", "health", "127.0.0.1:1", *check[3:]], capture_output=True,
                              text=True, timeout=30)
        assert done.returncode == 3, done.stderr


def small_root(folder):
    """A root with the control data of one package."""
    (folder / "var/lib/dpkg/status.d").mkdir(parents=True)
    (folder / "usr/lib").mkdir(parents=True)
    (folder / "usr/lib/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (folder / "var/lib/dpkg/status.d/libgrpc++1.51").write_text(
        "Package: libgrpc++1.51\nVersion: 1:1.51.1-3+b1\nArchitecture: amd64\nMaintainer: A B <a@b.c>\n"
        "Source: grpc\nDescription: C++ library\n Package: not-a-field\n")
    return folder


def sbom(*arguments):
    return subprocess.run([sys.executable, SBOM, "--name", "trainyard-worker", "--version", manifests.VERSION,
                           *arguments], capture_output=True, text=True, timeout=60)


def test_the_bill_of_materials_lists_packages_and_pinned_wheels(tmp_path):
    root = small_root(tmp_path)

    done = sbom("--root", root, "--wheels", harness.ROOT / "requirements" / "build.txt")

    bill = json.loads(done.stdout)
    by_name = {component["name"]: component for component in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX" and bill["specVersion"] == "1.5"
    assert by_name["libgrpc++1.51"]["purl"] == (
        "pkg:deb/debian/libgrpc%2B%2B1.51@1%3A1.51.1-3%2Bb1?arch=amd64&distro=debian-12")
    assert by_name["torch"]["purl"].startswith("pkg:pypi/torch@2.")
    assert {"nvidia-cuda-cupti", "nvidia-cuda-runtime"} < set(by_name) and "not-a-field" not in by_name
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(references) == len(set(references)) and bill["dependencies"][0]["dependsOn"] == references
    assert sbom("--root", root, "--wheels", harness.ROOT / "requirements" / "build.txt").stdout == done.stdout
    assert json.loads(sbom("--root", root).stdout)["serialNumber"] != bill["serialNumber"]


def test_the_bill_of_materials_refuses_a_wheel_without_a_version_and_another_folder(tmp_path):
    root = small_root(tmp_path / "root")
    (tmp_path / "wheels.txt").write_text("torch>=2\n")

    assert "'torch>=2' is not pinned" in sbom("--root", root, "--wheels", tmp_path / "wheels.txt").stderr
    assert "status.d" in sbom("--root", tmp_path).stderr


@pytest.mark.parametrize("verb, program, package", [("image", "buildah", "buildah"),
                                                    ("package", "dpkg-shlibdeps", "dpkg-dev")])
def test_image_and_package_name_what_is_missing(tmp_path, verb, program, package):
    # A PATH with everything that ./dev calls before, but without the program.
    for name in ("bash", "readlink", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))

    done = subprocess.run([harness.ROOT / "dev", verb], env={"PATH": str(tmp_path)}, capture_output=True, text=True,
                          timeout=60)

    assert done.returncode == 1
    assert f"{verb} needs {package}" in done.stderr and "apt-get install" in done.stderr
    assert subprocess.run([harness.ROOT / "dev", verb, "--no-such-flag"], capture_output=True,
                          timeout=60).returncode == 2


# Long: builds and starts the images.

class Storage:
    """The images that ./dev image built, in a storage of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.mounts = {}

    def buildah(self, *arguments):
        done = subprocess.run(["buildah", "--root", self.folder / "images", "--runroot", self.folder / "run",
                               *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def config(self, image):
        return json.loads(self.buildah("inspect", "--type", "image", f"trainyard-{image}"))["Docker"]["config"]

    def mount(self, image):
        if image not in self.mounts:
            self.mounts[image] = pathlib.Path(self.buildah("mount", self.buildah("from", f"trainyard-{image}")))
        return self.mounts[image]


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    roots.require("buildah", "debootstrap")
    folder = tmp_path_factory.mktemp("images")
    roots.dev("image", "--no-build", "--storage", folder)
    storage = Storage(folder)
    yield storage
    storage.buildah("umount", "--all")
    roots.dev("image", "--clean", "--storage", folder)
    assert not folder.exists()


def unpacked_bytes(folder):
    listed = subprocess.run(["du", "--summarize", "--apparent-size", "--bytes", "--one-file-system", folder],
                            capture_output=True, text=True, check=True).stdout
    return int(listed.split()[0])


def start(cluster, storage, image, arguments, runs):
    """Starts an image with arguments, as user and with the entry point that its configuration names."""
    config = storage.config(image)
    variables = dict(entry.split("=", 1) for entry in config["Env"])
    root = storage.mount(image)
    return cluster.start(image, roots.command(root, config["Entrypoint"] + arguments, config["User"]),
                         env=roots.environment(binds=[(runs, "/runs")], **variables))


def run_check(storage, image, address):
    config = storage.config(image)
    kind, *check = config["Healthcheck"]["Test"]
    assert kind == "CMD"
    return subprocess.run(["chroot", "--userspec", config["User"], storage.mount(image), check[0], "health", address,
                           *check[3:]], capture_output=True, text=True, timeout=30)


def trainctl(storage, image, address, *arguments, runs, expect=0):
    return roots.run(storage.mount(image), ["/usr/bin/tini", "--", "/opt/trainyard/bin/trainctl", "--coordinator",
                                            address, *arguments], user="1000:1000", binds=[(runs, "/runs")],
                     TRAINYARD_TOKEN_FILE="/runs/token", expect=expect)


@pytest.mark.long
def test_images_are_small_and_describe_themselves(storage):
    for image in IMAGES:
        config, root = storage.config(image), storage.mount(image)
        assert config["User"] == "1000:1000"
        assert config["Labels"]["org.opencontainers.image.version"] == manifests.VERSION
        assert len(config["Labels"]["org.opencontainers.image.revision"]) == 40
        bill = json.loads((root / "usr/share/doc/trainyard/sbom.cdx.json").read_text())
        listed = {component["name"] for component in bill["components"]}
        assert {path.name for path in (root / "var/lib/dpkg/status.d").iterdir()} <= listed
        assert not list(root.glob("usr/bin/apt*")) and not list(root.glob("usr/bin/dpkg*"))
        assert ("torch" in listed) == (image == "worker")
        assert (root / "etc/ssl/certs/ca-certificates.crt").exists() == (image == "coordinator")
        for path in ("runs", "var/lib/trainyard"):
            assert (root / path).stat().st_uid == 1000, path
        assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
        print(f"trainyard-{image}: {unpacked_bytes(root) / 1e6:.0f} MB")
    # For webhooks over https: the file with certificates that the coordinator names is there, and OpenSSL can read it.
    sender = (harness.ROOT / "coordinator" / "http" / "webhook_sender.cc").read_text()
    bundle = storage.mount("coordinator") / re.search(r'kCertificates\[\] = "/([^"]+)"', sender)[1]
    assert len(ssl.create_default_context(cafile=bundle).get_ca_certs()) > 100
    assert unpacked_bytes(storage.mount("coordinator")) < 60e6
    assert unpacked_bytes(storage.mount("trainctl")) < 60e6


@pytest.mark.long
def test_the_images_run_a_job_and_report_their_health(cluster, storage):
    runs = cluster.folder / "runs"
    runs.mkdir()
    shutil.copy(cluster.text, runs / "text.txt")
    (runs / "token").write_text("a-token-for-tests-0123456789\n")
    job = cluster.write_job(train__steps=5, checkpoint__dir="/runs/small", train__data__text=["/runs/text.txt"])
    shutil.copy(job, runs / "job.yaml")
    for path in [runs, *runs.iterdir()]:
        os.chown(path, 1000, 1000)
    (runs / "token").chmod(0o600)
    port, health = harness.free_port(), harness.free_port()
    address, token = f"127.0.0.1:{port}", ["--token-file", "/runs/token"]

    coordinator = start(cluster, storage, "coordinator", ["--listen", address, "--metrics", "", *token], runs)
    worker = start(cluster, storage, "worker",
                   ["--coordinator", address, "--slots", "2", "--name", "h1", "--metrics", "",
                    "--health", f"127.0.0.1:{health}", *token], runs)

    def healthy():
        assert coordinator.alive() and worker.alive(), coordinator.output() + worker.output()
        return (run_check(storage, "coordinator", address).returncode == 0 and
                run_check(storage, "worker", f"127.0.0.1:{health}").returncode == 0)

    harness.wait_until(healthy, "both images are healthy", 30)
    identity = harness.job_id_of(
        trainctl(storage, "trainctl", address, "submit", "/runs/job.yaml", "--json", runs=runs))
    assert "SUCCEEDED" in trainctl(storage, "trainctl", address, "watch", identity, runs=runs)
    text = trainctl(storage, "worker", address, "sample", "/runs/small", "--prompt", "the", "--tokens", "5", runs=runs)
    assert text.startswith("the")
    # The hooks of Kubernetes need what is in the image.
    for hook in ("drain-host.sh", "allow-host.sh"):
        roots.run(storage.mount("worker"), ["/bin/sh", f"/hooks/{hook}"], user="1000:1000",
                  binds=[(runs, "/runs"), (manifests.DEPLOY / "kubernetes" / "base" / "hooks", "/hooks")],
                  TRAINYARD_COORDINATOR=address, TRAINYARD_TOKEN_FILE="/runs/token", TRAINYARD_NAME="h1")
        listed = trainctl(storage, "trainctl", address, "cluster", "--json", runs=runs)
        assert harness.events(listed)[0]["cordoned"] == (hook == "drain-host.sh"), listed
    refused = trainctl(storage, "trainctl", address, "sample", "/runs/small", runs=runs, expect=2)
    assert "trainyard-trainer, which is not installed" in refused

    for program in (coordinator, worker):
        roots.stop(program)
    harness.wait_until(lambda: not coordinator.alive() and not worker.alive(), "both containers end on SIGTERM", 15)
    assert run_check(storage, "coordinator", address).returncode == 3
