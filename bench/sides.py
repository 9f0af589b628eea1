"""The two sides of a comparison: a run of Trainyard through trainctl and one of PyTorch through torchrun, measured
identically.

Both train the same model on the same bytes with the same tokens per step, and are measured over the same steps: those
after `warmup`, as total tokens divided by total time. Both start from a command as a user would type it.
"""

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = ROOT / "build" / "bin"
PEERS = ROOT / "bench" / "peers"
LIMIT_S = 600  # of one run of a peer


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model and how long to train it; `batch` is per rank."""

    layers: int
    heads: int
    width: int
    context: int
    batch: int
    warmup: int
    steps: int
    ranks: int = 2
    threads: int = 1  # of a rank

    @property
    def tokens_per_step(self):
        return self.batch * self.ranks * self.context

    @property
    def parameters(self):
        """Parameters of GPT-2 on bytes, with the head tied to the embedding."""
        return (256 + self.context) * self.width + self.layers * (12 * self.width**2 + 13 * self.width) + 2 * self.width


LAB_10M = Shape(layers=6, heads=6, width=384, context=256, batch=8, warmup=3, steps=8)
TINY = Shape(layers=4, heads=4, width=128, context=64, batch=2, warmup=40, steps=200)


@dataclasses.dataclass(frozen=True)
class Measured:
    tokens_per_s: float
    first_step_s: float  # from the command to the end of the first step
    step_s: float        # one steady step
    exposed_s: float = 0  # part of step_s in which compute waits for communication; ours only
    last_loss: float = 0
    # The memory of rank 0 in the last step, just before the optimizer's update: {kind: {bytes, peak_bytes}}; ours only.
    memory: dict = dataclasses.field(default_factory=dict)
    extra: object = None  # what read_folder of run_ours returned

    @property
    def start_s(self):
        """The start-up time: until the end of the first step, minus a steady step."""
        return self.first_step_s - self.step_s


class MeasurementFailed(Exception):
    pass


class Refused(MeasurementFailed):
    """trainctl refused the job (exit code 2), for example because this build does not support one of its keys."""


def text_file(folder):
    """About a megabyte of C++ headers, the data of both sides."""
    path = pathlib.Path(folder) / "text.txt"
    if not path.exists():
        with path.open("wb") as out:
            for header in sorted(pathlib.Path("/usr/include/c++").rglob("*")):
                if header.is_file() and out.tell() < 1 << 20:
                    out.write(header.read_bytes())
    return path


def memory_in(events):
    """The memory in the newest event that contains it: a step reports its memory only when that has changed."""
    return next((event["memory"] for event in reversed(events) if event.get("memory")), {})


def run_ours(shape, folder, changes=None, read_folder=None):
    """One `trainctl run`; the first step ends when trainctl has printed it. `changes`: further keys of the job.
    `read_folder`: called with the run folder before it is deleted."""
    with tempfile.TemporaryDirectory(dir=folder) as run_folder:
        command = [BIN / "trainctl", "run", ROOT / "configs" / "jobs" / "lab-10m.yaml", "--json"]
        settings = {
            "name": "bench",
            "train.model.layers": shape.layers,
            "train.model.heads": shape.heads,
            "train.model.width": shape.width,
            "train.model.context": shape.context,
            "train.data.text": [str(text_file(folder))],
            "train.batch.global": shape.batch * shape.ranks,
            "train.batch.micro": shape.batch,
            "train.optimizer.lr": 3e-4,
            "train.schedule.kind": "constant",
            "train.schedule.warmup_steps": 0,
            "train.steps": shape.warmup + shape.steps,
            "train.evaluate.every_steps": 0,
            "resources.ranks": shape.ranks,
            "resources.threads_per_rank": shape.threads,
            "checkpoint.every_steps": 0,
            "checkpoint.dir": f"{run_folder}/run",
            **(changes or {}),
        }
        for key, value in settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        first, events, output = None, [], []
        began = time.time()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              cwd=run_folder) as process:
            for line in process.stdout:
                output.append(line)
                event = json.loads(line)
                if event["event"] == "step":
                    first = first or time.time()
                    events.append(event)
            errors = process.stderr.read()
        if process.returncode == 2 and not events:
            raise Refused(errors.strip().splitlines()[-1] if errors.strip() else "trainctl refused the job")
        if process.returncode != 0 or len(events) != shape.warmup + shape.steps:
            raise MeasurementFailed(f"trainctl run ended with {process.returncode} after {len(events)} steps:\n"
                                    f"{''.join(output[-5:])}{errors[-2000:]}")
        extra = read_folder(pathlib.Path(run_folder) / "run") if read_folder else None
    window = [event for event in events if event["step"] > shape.warmup]
    seconds = [shape.tokens_per_step / event["tokens_per_s"] for event in window]
    exposed = statistics.median(event["exposed_communication_s"] for event in window)
    return Measured(shape.tokens_per_step * len(window) / sum(seconds), first - began, statistics.median(seconds),
                    exposed, window[-1]["loss"], memory_in(events), extra)


def build_lever(folder):
    """Compiles the library that is preloaded into the tuned peer: MKL then uses the kernels of Intel's CPUs."""
    library = pathlib.Path(folder) / "mkl_lever.so"
    if not library.exists():
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", PEERS / "mkl_lever.c", "-o", library], check=True)
    return library


def run_peer(shape, folder, tuned=False, mode="ddp", bf16=False):
    """One run of gpt_torch.py in this mode, under torchrun if the mode uses several ranks.

    `tuned`: with the library of build_lever; otherwise PyTorch as installed.
    """
    world = 1 if mode in ("eager", "compile") else shape.ranks
    arguments = {"batch": shape.batch, **({"bf16": True} if bf16 else {})}
    return run_torch("gpt_torch.py", world, shape, folder, tuned, mode=mode, **arguments)


def run_torch(program, world, shape, folder, tuned, **options):
    """One run of a program of PEERS that prints a line such as gpt_torch.py's, under torchrun if `world` is above 1.
    `options`: further options of the program; True for those without a value."""
    python = pathlib.Path(sys.executable)
    launcher = [python] if world == 1 else [python.with_name("torchrun"), "--nproc-per-node", world]
    command = [*launcher, PEERS / program, "--threads", shape.threads, "--layers", shape.layers, "--heads", shape.heads,
               "--width", shape.width, "--seq", shape.context, "--warmup", shape.warmup, "--steps", shape.steps,
               "--data", text_file(folder)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [value])
    environment = dict(os.environ, OMP_NUM_THREADS=str(shape.threads))
    if tuned:
        environment["LD_PRELOAD"] = str(build_lever(folder))
    began = time.time()
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True, cwd=folder,
                          timeout=LIMIT_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        output = done.stdout[-1000:] + done.stderr[-2000:]
        raise MeasurementFailed(f"PyTorch's {options['mode']} ended with {done.returncode}:\n{output}")
    result = json.loads(lines[-1])
    return Measured(result["tok_s"], result["first_step_unix"] - began, result["step_ms"] / 1e3,
                    last_loss=result["last_loss"])


def make_measures(ours, peers, folder):
    """The runs of both sides by name, each peer next to ours, so that both run at about the same time.

    `ours`: {"ours-X": (shape, further keys of the job file)}. `peers`: {X: (mode of gpt_torch.py, whether it uses
    bf16)}; each is measured as "installed-X" and "tuned-X".
    """
    measures = {}
    for name, (shape, settings) in ours.items():
        measures[name] = lambda shape=shape, settings=settings: run_ours(shape, folder, settings)
        peer = peers.get(name.removeprefix("ours-"))
        for side in ("installed", "tuned") if peer else ():
            measures[name.replace("ours", side, 1)] = lambda shape=shape, peer=peer, side=side: run_peer(
                shape, folder, tuned=side == "tuned", mode=peer[0], bf16=peer[1])
    return measures


def run_exchanges(shape, folder):
    """Counts and bytes of the messages per step of the legacy DataParallel and of DDP (peers/exchanges.py)."""
    torchrun = pathlib.Path(sys.executable).with_name("torchrun")
    done = subprocess.run([str(torchrun), "--nproc-per-node", str(shape.ranks), str(PEERS / "exchanges.py")],
                          capture_output=True,
                          text=True, cwd=folder, timeout=LIMIT_S, env=dict(os.environ, OMP_NUM_THREADS="1"))
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise MeasurementFailed(f"the simulation of DataParallel ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def submit_to_main_s(folder, stubs):
    """Seconds from `trainctl submit` to the first message of a rank to its daemon, with coordinator and daemon running.

    Sending that message is the first thing that a rank does in main. The coordinator is polled every 20 ms,
    so the result may be too high by that time. `stubs`: the generated gRPC modules (tests/cluster/stubs.py).
    """
    sys.path.insert(0, str(ROOT / "tests" / "cluster"))
    import harness
    import processes

    processes.start_reaper()
    with tempfile.TemporaryDirectory(dir=folder) as cluster_folder:
        cluster = harness.Cluster(cluster_folder, stubs)
        try:
            cluster.start_coordinator()
            cluster.start_worker("h1", slots=2)
            began = time.monotonic()
            job = cluster.submit(train__steps=5)
            harness.wait_until(lambda: any(rank.phase not in ("", "starting") for rank in cluster.get(job).job.ranks),
                               "the first rank has reported")
            seconds = time.monotonic() - began
            cluster.wait_for_end(job)
            return seconds
        finally:
            cluster.close()
