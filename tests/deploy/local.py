"""Runs command lines of deploy/ on this host: with other ports, in a temporary folder."""

import pathlib
import re

import yaml

import harness


class Local:
    """Replaces addresses, paths and tokens by those of this test."""

    def __init__(self, folder):
        self.folder = folder
        self.port = harness.free_port()
        self.token = folder / "token"
        self.token.write_text("a-token-for-tests-0123456789\n")
        self.token.chmod(0o600)
        self.metrics = {}  # port in the files: the ports that replace it, in the order of the commands

    def text(self, text):
        text = re.sub(r"\b(0\.0\.0\.0|trainyard-coordinator|coordinator|head):7070$", f"127.0.0.1:{self.port}", text)
        if re.fullmatch(r"0\.0\.0\.0:\d+|127\.0\.0\.1:707[123]", text):
            text = f"127.0.0.1:{self.metrics_port(text)}"
        if re.fullmatch(r"/etc/trainyard/(secret/)?token", text):
            return str(self.token)
        return text.replace("/var/lib/trainyard", str(self.folder / "state"))

    def metrics_port(self, address):
        port = harness.free_port()
        self.metrics.setdefault(address.rpartition(":")[2], []).append(port)
        return port

    def command(self, command):
        assert command[0].startswith("/opt/trainyard/bin/")
        parts = [str(harness.BIN / pathlib.Path(command[0]).name)]
        for part in command[1:]:
            if part.endswith(".yaml"):
                config = yaml.safe_load(pathlib.Path(part).read_text())
                path = self.folder / f"{len(list(self.folder.iterdir()))}-{pathlib.Path(part).name}"
                path.write_text(yaml.safe_dump({key: self.text(value) if isinstance(value, str) else value
                                                for key, value in config.items()}))
                part = str(path)
            parts.append(self.text(part))
        return parts


def start(cluster, local, commands):
    """Starts the coordinator and then the daemons, each with its own state folder. Returns the number of daemons."""
    ours = [local.command(command) for command in commands]
    (coordinator,) = [command for command in ours if command[0].endswith("coordinator")]
    workers = [command for command in ours if command[0].endswith("worker")]
    program = cluster.start("coordinator", coordinator)
    program.address = f"127.0.0.1:{local.port}"
    cluster.coordinator = program
    for number, worker in enumerate(workers):
        state = worker.index("--state") + 1
        worker[state] += f"-{number}"
        more = [] if "--health" in worker else ["--health", f"127.0.0.1:{local.metrics_port(':7073')}"]
        more += [] if "--name" in worker else ["--name", f"host-{number}"]
        cluster.start(f"worker-{number}", worker + more)
    return len(workers)


def wait_until_attached(cluster, workers, *token):
    def attached():
        for program in cluster.programs:
            assert program.alive(), program.output()
        done = cluster.trainctl(*token, "cluster", "--json", expect=None)
        hosts = harness.events(done.stdout)
        return len([host for host in hosts if host.get("attached")]) == workers

    harness.wait_until(attached, f"{workers} daemons are attached")
