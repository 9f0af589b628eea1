"""Finds or builds the images of ./dev image, and runs their programs as processes in namespaces, as in containers."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import harness
import manifests
import roots

SMALL = ("coordinator", "trainctl", "worker")
# `./dev image --check` names the storage and the images in it.
TESTED = tuple(os.environ.get("TRAINYARD_IMAGES", " ".join([*SMALL, "worker-cuda"])).split())
BYTES_AT_MOST = {"coordinator": 60e6, "trainctl": 60e6, "worker": 600e6, "worker-cuda": 4e9}
CUDA_DISK_GB = 22
# NVIDIA's container toolkit mounts the libraries of the driver.
FROM_THE_HOST = {"libcuda.so.1", "libnvidia-ml.so.1"}
# Parts of the wheels for networks and file systems that no image has. No library loads them unless a program requests
# such a network or file system.
NEVER_LOADED = re.compile(r"/(nvshmem_(bootstrap|transport)_\w+|libcufile_rdma)\.so")


class Storage:
    """The images that ./dev image built, in a storage of their own."""

    def __init__(self, folder, own):
        self.folder = folder
        self.own = own  # made by the tests, which also remove it
        self.containers = {}
        self.mounts = {}

    def buildah(self, *arguments):
        done = subprocess.run(["buildah", "--root", self.folder / "images", "--runroot", self.folder / "run",
                               *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def require(self, image):
        """Builds the image of GPU workers when the first test needs it; skips the test if that is impossible."""
        if image != "worker-cuda" or image in self.containers:
            return
        if not self.own:
            if image not in TESTED:
                pytest.skip("./dev image --check was not given worker-cuda")
            return
        if not (harness.BIN / "libtrainyard_cuda.so").exists():
            pytest.skip("build/bin/libtrainyard_cuda.so is missing; ./dev setup cuda and ./dev build make it")
        free = shutil.disk_usage(self.folder).free / 1e9
        if free < CUDA_DISK_GB:
            pytest.skip(f"worker-cuda needs {CUDA_DISK_GB} GB in {self.folder}, but only {free:.0f} GB are free")
        print(roots.dev("image", "--no-build", "--storage", self.folder, image))

    def config(self, image):
        return json.loads(self.buildah("inspect", "--type", "image", f"trainyard-{image}"))["Docker"]["config"]

    def mount(self, image):
        if image not in self.mounts:
            self.containers[image] = self.buildah("from", f"trainyard-{image}")
            self.mounts[image] = pathlib.Path(self.buildah("mount", self.containers[image]))
        return self.mounts[image]

    def missing_libraries(self, image, file):
        """The names of the libraries that the program or library `file` needs and that the loader does not find."""
        loader = "/lib64/ld-linux-x86-64.so.2"
        if image.startswith("worker"):  # as ldd does it; the other images have no shell
            command = ["/bin/sh", "-c", f"LD_TRACE_LOADED_OBJECTS=1 exec {loader} {file}"]
        else:  # the output names at most one missing library
            command = [loader, "--list", file]
        done = subprocess.run(["chroot", "--userspec=1000:1000", self.mount(image), *command], capture_output=True,
                              text=True, timeout=60, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        assert done.returncode == 0 and "=>" in done.stdout or "linked" in done.stdout, (file, done.stdout, done.stderr)
        return set(re.findall(r"^\s*(\S+) => not found", done.stdout, re.M))

    def close(self):
        for container in self.containers.values():
            self.buildah("umount", container)
            self.buildah("rm", container)
        if self.own:
            roots.dev("image", "--clean", "--storage", self.folder)
            assert not self.folder.exists()


def built_storage():
    """The storage of ./dev image --check, or None."""
    folder = os.environ.get("TRAINYARD_IMAGE_STORAGE")
    return Storage(pathlib.Path(folder), own=False) if folder else None


def build(folder):
    """Builds the small images in a new storage."""
    roots.require("buildah", "debootstrap")
    print(roots.dev("image", "--no-build", "--storage", folder))
    return Storage(folder, own=True)


def skip_if_there_is_a_gpu():
    if subprocess.run(["sh", "-c", "nvidia-smi -L | grep -q ^GPU"], capture_output=True).returncode == 0:
        pytest.skip("this machine has a GPU that works")


def unpacked_bytes(folder):
    listed = subprocess.run(["du", "--summarize", "--apparent-size", "--bytes", "--one-file-system", folder],
                            capture_output=True, text=True, check=True).stdout
    return int(listed.split()[0])


class Containers:
    """A coordinator and a worker, each with the user and the entry point that the configuration of its image names, and
    trainctl. All see the folder `runs` as /runs."""

    def __init__(self, cluster, storage, worker):
        self.cluster, self.storage, self.worker_image = cluster, storage, worker
        self.runs = cluster.folder / "runs"
        self.runs.mkdir()
        shutil.copy(cluster.text, self.runs / "text.txt")
        (self.runs / "token").write_text("a-token-for-tests-0123456789\n")
        (self.runs / "token").chmod(0o600)
        self.address = f"127.0.0.1:{harness.free_port()}"
        self.health = f"127.0.0.1:{harness.free_port()}"
        self.give_to_user()

    def give_to_user(self):
        for path in [self.runs, *self.runs.iterdir()]:
            os.chown(path, 1000, 1000)

    def start(self, **variables):
        """Starts the coordinator and the worker, and waits until their health checks pass. `variables`: additional
        environment variables of the worker."""
        token = ["--token-file", "/runs/token"]
        self.give_to_user()
        self.coordinator = self._start("coordinator", ["--listen", self.address, "--metrics", "", *token])
        self.worker = self._start(self.worker_image, [
            "--coordinator", self.address, "--slots", "2", "--name", "h1", "--metrics", "", "--health", self.health,
            *token], **variables)

        def healthy():
            assert self.coordinator.alive() and self.worker.alive(), self.coordinator.output() + self.worker.output()
            return (self.check("coordinator", self.address) == 0 and
                    self.check(self.worker_image, self.health) == 0)

        harness.wait_until(healthy, "both images are healthy")

    def _start(self, image, arguments, **more):
        config = self.storage.config(image)
        variables = dict(entry.split("=", 1) for entry in config["Env"]) | more
        command = roots.command(self.storage.mount(image), config["Entrypoint"] + arguments, config["User"])
        return self.cluster.start(image, command, env=roots.environment(binds=[(self.runs, "/runs")], **variables))

    def check(self, image, address):
        """The exit code of the health check of an image."""
        config = self.storage.config(image)
        kind, *check = config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return subprocess.run(["chroot", "--userspec", config["User"], self.storage.mount(image), check[0], "health",
                               address, *check[3:]], capture_output=True, timeout=30).returncode

    def trainctl(self, *arguments, image="trainctl", expect=0):
        """Runs trainctl with this coordinator and returns its output."""
        command = ["/usr/bin/tini", "--", "/opt/trainyard/bin/trainctl", "--coordinator", self.address, *arguments]
        return roots.run(self.storage.mount(image), command, user="1000:1000", binds=[(self.runs, "/runs")],
                         TRAINYARD_TOKEN_FILE="/runs/token", expect=expect)

    def run_hook(self, name):
        """Runs a hook of deploy/kubernetes in the image of the worker."""
        roots.run(self.storage.mount(self.worker_image), ["/bin/sh", f"/hooks/{name}"], user="1000:1000",
                  binds=[(self.runs, "/runs"), (manifests.DEPLOY / "kubernetes" / "base" / "hooks", "/hooks")],
                  TRAINYARD_COORDINATOR=self.address, TRAINYARD_TOKEN_FILE="/runs/token", TRAINYARD_NAME="h1")

    def write_job(self, name, **keys):
        """Writes a small job with the run folder /runs/NAME, and returns its path in the containers."""
        job = self.cluster.write_job(train__steps=5, checkpoint__dir=f"/runs/{name}",
                                     train__data__text=["/runs/text.txt"], **keys)
        shutil.copy(job, self.runs / f"{name}.yaml")
        self.give_to_user()
        return f"/runs/{name}.yaml"

    def submit(self, name, **keys):
        """Submits a job that write_job writes, from the image of trainctl, and returns its id."""
        return harness.job_id_of(self.trainctl("submit", self.write_job(name, **keys), "--json"))

    def stop(self):
        """Ends the coordinator and the worker as a container runtime does."""
        for program in (self.coordinator, self.worker):
            roots.stop(program)
        harness.wait_until(lambda: not self.coordinator.alive() and not self.worker.alive(),
                           "both containers end on SIGTERM")
        assert self.check("coordinator", self.address) == 3
