"""The images of deploy/Dockerfile. The long tests build them with buildah from the programs in build/ on a base that
debootstrap makes, and start them as a container runtime would. `./dev image --check` runs the long tests on the images
that it has built, including images built from source."""

import json
import re
import shutil
import ssl
import subprocess
import sys

import pytest

import harness
import images
import manifests
import roots

SBOM = manifests.DEPLOY / "image" / "sbom.py"


def test_every_image_has_labels_the_version_another_user_and_an_init():
    for image in images.SMALL:
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
    # A PATH with all programs that ./dev calls before it looks for `program`, but without `program`.
    for name in ("bash", "readlink", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name))

    done = subprocess.run([harness.ROOT / "dev", verb], env={"PATH": str(tmp_path)}, capture_output=True, text=True,
                          timeout=60)

    assert done.returncode == 1
    assert f"{verb} needs {package}" in done.stderr and "apt-get install" in done.stderr
    assert subprocess.run([harness.ROOT / "dev", verb, "--no-such-flag"], capture_output=True,
                          timeout=60).returncode == 2


def test_image_names_the_space_that_is_missing(tmp_path):
    roots.require("buildah", "debootstrap")
    script = 'mount -t tmpfs -o size=64m none "$1" && exec "$2" image --no-build --storage "$1/images"'

    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", tmp_path, harness.ROOT / "dev"],
                          capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert f"image needs up to 3 GB in {tmp_path}/images, but only 0 GB are free there" in done.stderr


# Long: builds and starts the images.

@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = images.built_storage() or images.build(tmp_path_factory.mktemp("images"))
    yield storage
    storage.close()


@pytest.mark.long
@pytest.mark.parametrize("image", images.TESTED)
def test_an_image_describes_itself_and_runs_without_privileges(storage, image):
    storage.require(image)
    config, root = storage.config(image), storage.mount(image)

    assert config["User"] == "1000:1000"
    assert config["Labels"]["org.opencontainers.image.title"] == f"trainyard-{image}"
    assert config["Labels"]["org.opencontainers.image.version"] == manifests.VERSION
    assert len(config["Labels"]["org.opencontainers.image.revision"]) == 40
    bill = json.loads((root / "usr/share/doc/trainyard/sbom.cdx.json").read_text())
    listed = {component["name"] for component in bill["components"]}
    assert {path.name for path in (root / "var/lib/dpkg/status.d").iterdir()} <= listed
    assert not list(root.glob("usr/bin/apt*")) and not list(root.glob("usr/bin/dpkg*"))
    assert ("torch" in listed) == image.startswith("worker")
    assert ("nvidia-cublas" in listed) == (image == "worker-cuda")
    assert (root / "etc/ssl/certs/ca-certificates.crt").exists() == (image == "coordinator")
    for path in ("runs", "var/lib/trainyard"):
        assert (root / path).stat().st_uid == 1000, path
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    size = images.unpacked_bytes(root)
    print(f"trainyard-{image}: {size / 1e6:.0f} MB")
    assert size < images.BYTES_AT_MOST[image]


@pytest.mark.long
@pytest.mark.parametrize("image", images.TESTED)
def test_nothing_in_an_image_comes_from_the_machine_that_compiled_it(storage, image):
    storage.require(image)
    root = storage.mount(image)

    for name in ("src", "ccache", "programs", "image", "usr/local/share/ca-certificates"):
        assert not list((root / name).glob("*")), name
    for program in (root / "opt/trainyard/bin").iterdir():
        dynamic = subprocess.run(["readelf", "--dynamic", program], capture_output=True, text=True, check=True).stdout
        paths = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic)
        assert all(path.startswith("$ORIGIN/") for text in paths for path in text.split(":")), (program, paths)
        missing = storage.missing_libraries(image, f"/opt/trainyard/bin/{program.name}")
        assert not missing, (program.name, missing)


@pytest.mark.long
def test_the_coordinator_finds_certificates_for_webhooks_where_it_looks_for_them(storage):
    sender = (harness.ROOT / "coordinator" / "http" / "webhook_sender.cc").read_text()
    # The file with certificates that the coordinator names is there, and OpenSSL can read it.
    bundle = storage.mount("coordinator") / re.search(r'kCertificates\[\] = "/([^"]+)"', sender)[1]

    assert len(ssl.create_default_context(cafile=bundle).get_ca_certs()) > 100


@pytest.mark.long
@pytest.mark.parametrize("worker", [image for image in images.TESTED if image.startswith("worker")])
def test_the_images_run_a_job_and_report_their_health(cluster, storage, worker):
    storage.require(worker)
    started = images.Containers(cluster, storage, worker)
    started.start()

    identity = started.submit("small")
    assert "SUCCEEDED" in started.trainctl("watch", identity)
    assert started.trainctl("sample", "/runs/small", "--prompt", "the", "--tokens", "5", image=worker).startswith("the")
    # The hooks of Kubernetes run with the programs of the image.
    for hook in ("drain-host.sh", "allow-host.sh"):
        started.run_hook(hook)
        listed = started.trainctl("cluster", "--json")
        assert harness.events(listed)[0]["cordoned"] == (hook == "drain-host.sh"), listed
    refused = started.trainctl("sample", "/runs/small", expect=2)
    assert "trainyard-trainer, which is not installed" in refused

    started.stop()


@pytest.mark.long
def test_the_libraries_of_the_gpu_image_are_complete_except_for_the_driver(storage):
    storage.require("worker-cuda")
    folder = storage.mount("worker-cuda") / "opt/trainyard/lib"
    libraries = [f"/opt/trainyard/lib/{path.relative_to(folder)}" for path in folder.rglob("*.so*")
                 if not path.is_symlink()]

    missing = {library: storage.missing_libraries("worker-cuda", library) for library in libraries}

    assert {"libtorch_cuda.so", "libnccl.so.2", "libcudart.so.13", "libnvrtc.so.13",
            "libnvrtc-builtins.so.13.0"} <= {path.rpartition("/")[2] for path in libraries}
    missing = {library: names - images.FROM_THE_HOST for library, names in missing.items()
               if not images.NEVER_LOADED.search(library)}
    assert not {library: names for library, names in missing.items() if names}


@pytest.mark.long
def test_a_job_for_gpus_waits_with_the_reason_if_the_gpu_image_runs_on_a_machine_without_one(cluster, storage):
    storage.require("worker-cuda")
    images.skip_if_there_is_a_gpu()
    started = images.Containers(cluster, storage, "worker-cuda")
    started.start()

    identity = started.submit("gpu", resources__device="cuda")
    queued = harness.wait_until(lambda: "found 0 GPUs on 1 host" in started.trainctl("queue") and
                                started.trainctl("queue"), "the queue gives the reason")
    assert "attach hosts with GPUs, or set resources.device to cpu" in queued
    started.trainctl("cancel", identity)

    started.stop()


@pytest.mark.long
def test_the_gpu_image_loads_its_plugin_and_reports_that_the_driver_is_missing(cluster, storage):
    """A fake library of the driver lists a GPU, so the trainer loads the plugin with all its libraries."""
    storage.require("worker-cuda")
    images.skip_if_there_is_a_gpu()
    started = images.Containers(cluster, storage, "worker-cuda")
    source = harness.ROOT / "tests" / "gpu" / "fake_nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", started.runs / "libnvidia-ml.so.1"], check=True)
    started.start(LD_LIBRARY_PATH="/runs")

    identity = started.submit("gpu", resources__device="cuda", resources__ranks=1)
    watched = started.trainctl("watch", identity, expect=None)

    assert "FAILED" in watched, watched
    for text in ("no GPU can be used on this machine", "NVIDIA driver", "resources.device to cpu"):
        assert text in watched, watched
    started.stop()
