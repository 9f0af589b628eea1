"""The commands of "A first cluster and its first job" in docs/operators.md, word for word, in three root file systems
with network namespaces on one bridge. Differences from the guide: a bind mount is the shared file system; apt uses the
network of this machine; `scp` copies from the root of the head; `systemctl` records the unit, whose ExecStart the test
runs."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import harness
import roots

sys.path[:0] = [str(pathlib.Path(__file__).parents[1] / "cluster" / "faults"), str(harness.ROOT / "bench")]
import network as networks
import operate_browser

BROWSER = operate_browser.find()
GUIDE = harness.ROOT / "docs" / "operators.md"
STUBS = {"systemctl": '#!/bin/sh\necho "$*" >>/tmp/systemctl\n', "scp": '#!/bin/sh\ncp "/mnt/${1%%:*}${1#*:}" "$2"\n'}
HOSTS = ("head", "worker-1", "worker-2")


def blocks():
    found = dict(re.findall(r"^<!-- guide: (\w+) -->\n```sh\n(.*?)^```$", GUIDE.read_text(), re.M | re.S))
    assert set(found) == {"head", "worker", "job"}
    return found


def make_roots(folder):
    """{host: a bare Debian 12 with the stubs, and with the packages in /root}."""
    made, base = folder / "packages", folder / "base"
    roots.dev("package", "--no-build", "--output", made)
    done = subprocess.run(["/usr/sbin/debootstrap", "--variant=minbase", "bookworm", base,
                           "http://deb.debian.org/debian"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    for host in HOSTS:
        root = folder / host
        subprocess.run(["cp", "-a", base, root], check=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        for name, text in STUBS.items():
            (root / "usr/local/bin" / name).write_text(text)
            (root / "usr/local/bin" / name).chmod(0o755)
        for package in made.glob("*.deb"):
            shutil.copy(package, root / "root")
    return {host: folder / host for host in HOSTS}


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
def test_the_first_cluster_of_the_guide_runs_its_job_on_two_hosts_and_shows_the_loss_curve(cluster, tmp_path):
    roots.require("debootstrap", "dpkg-shlibdeps", "ip", "nsenter")
    commands = blocks()
    folders = make_roots(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    network = networks.Network(f"guide{os.getpid()}", HOSTS)
    page = None
    environment = roots.environment(binds=[(shared, "/srv/trainyard"), (folders["head"], "/mnt/head")])
    environment["PATH"] = "/usr/local/bin:" + environment["PATH"]

    def shell(host, text, prefix=()):
        done = subprocess.run([*prefix, *roots.command(folders[host], ["sh", "-exc", text])], text=True, timeout=600,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**environment, "DEBIAN_FRONTEND": "noninteractive"})
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    def start(host):
        root = folders[host]
        (unit,) = re.findall(r"^enable --now (\S+)$", (root / "tmp/systemctl").read_text(), re.M)
        text = (root / f"lib/systemd/system/{unit}.service").read_text()
        command = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])
        user = shell(host, "echo $(id -u trainyard):$(id -g trainyard)").strip().splitlines()[-1]
        state = root / command[command.index("--state") + 1].lstrip("/")
        state.mkdir(parents=True, exist_ok=True)
        for folder in (state.parent, state, shared):
            os.chown(folder, *map(int, user.split(":")))
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host]
        return cluster.start(host, [*network.host(host).prefix, *named, *roots.command(root, command, user)],
                             env=environment)

    try:
        shell("head", commands["head"])
        programs = [start("head")]
        for host in HOSTS[1:]:
            shell(host, commands["worker"])
            programs.append(start(host))
        prefix = network.host("head").prefix
        ask = "trainctl --coordinator 127.0.0.1:7070 --token-file /etc/trainyard/token cluster --json || true"

        def attached():
            assert all(program.alive() for program in programs), [program.output() for program in programs]
            return shell("head", ask, prefix).count('"attached":true') == 2

        harness.wait_until(attached, "both workers are attached", 60)
        shown = shell("head", commands["job"], prefix)
        assert "SUCCEEDED" in shown and "worker-1" in shown and "worker-2" in shown, shown
        job = re.search(r"trainctl status (\S+)", shown)[1]

        # The browser runs in the network of the head, where the guide's tunnel ends.
        page = operate_browser.Browser(BROWSER, tmp_path, prefix)
        page.attach()
        page.open(f"http://localhost:7071/#/jobs/{job}")
        harness.wait_until(lambda: page.evaluate("!document.getElementById('login').hidden"), "the login form")
        token = (folders["head"] / "etc/trainyard/token").read_text().strip()
        page.evaluate(f"document.getElementById('token').value = '{token}';"
                      "document.getElementById('login').requestSubmit()")
        curve = "(document.querySelector('path.curve') || document.body).getAttribute('d')"
        harness.wait_until(lambda: "L" in (page.evaluate(curve) or ""), "the loss curve is drawn")
    finally:
        if page:
            page.close()
        network.close()
        for folder in (*folders.values(), tmp_path / "base", tmp_path / "packages"):
            shutil.rmtree(folder, ignore_errors=True)
