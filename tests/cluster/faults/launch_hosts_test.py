"""Scripts of torchrun over two hosts, each of which is a network namespace: `trainctl launch --nnodes 2` has the losses
of torchrun on one machine, and `--nnodes 1:2` continues when a host dies."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import harness
import net_cluster

SCRIPTS = pathlib.Path(__file__).parents[2] / "interop" / "scripts"
EPOCHS = 6
LOSE_AT = 3
# How long a launch may take to end, in seconds. Peers notice at once that the programs of a host were killed, but only
# after a while that its link is cut.
END_S = 120


@pytest.fixture(autouse=True)
def environment_of_the_daemons(monkeypatch):
    """The scripts need the interpreter that has torch. GLOO_SOCKET_IFNAME is not set, so the daemons must choose the
    network interface: gloo would choose that of the machine's host name, which no namespace of the test has."""
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def hosts(tmp_path, request):
    """A cluster of the hosts a and b with two slots each; a failed test shows its logs."""
    with net_cluster.NetCluster(tmp_path, f"launch-{os.getpid()}", slots=2) as cluster:
        cluster.start()
        yield cluster
        if request.session.testsfailed:
            print(cluster.all_logs())


def lines_of(text):
    """Losses, without the prefix that names the rank."""
    return [re.sub(r"^\[\w+\]:", "", line) for line in text.splitlines() if " loss " in line]


def torchrun(folder, ranks, script, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
               SCRIPTS / script, *arguments]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=240, cwd=folder,
                          check=True).stdout


def launch_and_lose(cluster, host, cut_first):
    """Starts the elastic script on both hosts, kills `host` while the last rank waits, and returns the launch."""
    launch = cluster.start_trainctl("launch", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=1",
                                    SCRIPTS / "train_elastic.py", "saved", "--epochs", EPOCHS, "--lose-at", LOSE_AT)
    # Output that is not shown yet would be lost with its host.
    harness.wait_until(lambda: (cluster.folder / "saved" / "waits").exists()
                       and f"epoch {LOSE_AT - 1} " in launch.output() or not launch.alive(),
                       "the script has made its first epochs, and their losses are shown")
    assert launch.alive(), launch.output()
    cluster.kill_host(host, cut_first)
    return launch


def check_continued(cluster, launch, lost):
    assert launch.wait(END_S) == 0, launch.output()
    text = launch.output()
    ours = [re.fullmatch(r"epoch (\d+) loss (\S+) of (\d+)", line).groups() for line in lines_of(text)]
    assert [(int(epoch), int(world)) for epoch, _, world in ours] == [
        (epoch, 2 if epoch < LOSE_AT else 1) for epoch in range(EPOCHS)], text
    assert re.search(rf"host {lost} is lost|rank \d+ on \w+ .*restart 1 of 1", text, re.DOTALL), text
    # The sum over the samples has another order with another number of ranks.
    theirs = lines_of(torchrun(cluster.folder, 1, "train_elastic.py", "undisturbed", "--epochs", EPOCHS))
    for (_, loss, _), line in zip(ours, theirs, strict=True):
        assert float(loss) == pytest.approx(float(line.split()[3]), rel=1e-4)


@pytest.mark.slow
def test_two_hosts_have_the_losses_of_torchrun_on_one_machine(hosts):
    done = hosts.trainctl("launch", "--nnodes=2", "--nproc-per-node=1", SCRIPTS / "train_ddp.py", "--epochs", 2,
                          timeout=END_S)

    ours = lines_of(done.stdout)
    assert len(ours) == 8
    assert ours == lines_of(torchrun(hosts.folder, 2, "train_ddp.py", "--epochs", 2))


@pytest.mark.long
def test_an_elastic_script_continues_when_a_host_dies(hosts):
    launch = launch_and_lose(hosts, "b", cut_first=False)

    check_continued(hosts, launch, "b")
    # Two hosts are required now, and one is left: the job waits.
    waiting = hosts.start_trainctl("launch", "--nnodes=2", "--nproc-per-node=1", "--no-python", "true")
    harness.wait_until(lambda: "queued" in waiting.output(), "the job waits")
    assert waiting.alive()
    hosts.start_program("b")
    hosts.network.heal()
    assert waiting.wait(END_S) == 0, waiting.output()


@pytest.mark.long
@pytest.mark.parametrize("host", ["a", "b"])
def test_an_elastic_script_continues_when_the_link_of_a_host_is_cut(hosts, host):
    """Connections to the host stay open, so only the time without contact shows its loss. Any host may have rank 0."""
    launch = launch_and_lose(hosts, host, cut_first=True)

    check_continued(hosts, launch, host)
