"""At every point of a save, kill -9 ends one of the participants: a rank, a shim, a daemon, a host, the coordinator, or
all of them.

Afterwards the newest reported checkpoint loads, no incomplete one is used, no leftovers remain, and the losses are
those of an undisturbed run. TRAINYARD_CHECKPOINT_KILLS=1000 sets the number of kills; TRAINYARD_FAULTS_SEED repeats a
sequence.
"""

import json
import os
import pathlib
import random
import shutil

import pytest

import fault_loop
import harness

# The default is one kill at each of the 51 points of a save and 17 more with random victims.
KILLS = int(os.environ.get("TRAINYARD_CHECKPOINT_KILLS", "68"))
# Points that each rank passes in a save, and those of rank 0 only, with the number of times per save.
POINTS_OF_EACH_RANK = {"snapshot": 1, "create:partial:before": 1, "create:shard:before": 1, "create:shard:after": 1,
                       "append:shard:before": 48, "append:shard:after": 48, "sync:shard:before": 1,
                       "sync:shard:after": 1, "create:part:before": 1, "create:part:after": 1, "append:part:before": 1,
                       "append:part:after": 1, "sync:part:before": 1, "sync:part:after": 1, "sync:partial:before": 1,
                       "sync:partial:after": 1}
POINTS_OF_RANK_0 = {"remove:part:before": 2, "remove:part:after": 2, "create:manifest:before": 1,
                    "create:manifest:after": 1, "append:manifest:before": 1, "append:manifest:after": 1,
                    "sync:manifest:before": 1, "sync:manifest:after": 1, "ready": 1, "grant": 1,
                    "rename:partial:before": 1, "rename:partial:after": 1, "sync:run:before": 1, "sync:run:after": 1,
                    "commit": 1, "rename:step:before": 1, "rename:step:after": 1, "remove:partial:before": 1,
                    "remove:partial:after": 1}
SAVE_EVERY = 50
FILES_OF_A_RUN = {".data", ".lock", ".fence", ".settled", "metrics.jsonl"}


def draw_faults(seed, count):
    """Returns `count` faults in random order: one for each point, which kills the rank at that point, and then one for
    each point with a random victim, and so on."""
    rng = random.Random(seed)
    points = [(point, rank, passes) for rank in (0, 1) for point, passes in POINTS_OF_EACH_RANK.items()]
    points += [(point, 0, passes) for point, passes in POINTS_OF_RANK_0.items()]
    victims = fault_loop.TRAINERS_DIE[1:] + fault_loop.TRAINERS_LIVE
    faults = []
    for index in range(count):
        point, rank, passes = points[index % len(points)]
        victim = "self" if index < len(points) else rng.choice(victims)
        nth = passes * rng.randint(1, 3) + rng.randint(1, passes)  # a pass in the second, third or fourth save
        faults.append(fault_loop.Fault(point, rank, victim, nth))
    rng.shuffle(faults)
    return faults


def check_restores(events):
    """Checks that every restore is from a step at least as new as the newest checkpoint reported before."""
    newest = 0
    for event in events:
        if event.HasField("checkpoint"):
            newest = event.checkpoint.step
        if event.HasField("notice") and "restored from step " in event.notice.text:
            step = int(event.notice.text.partition("restored from step ")[2].partition(",")[0])
            assert step >= newest, f"restored from step {step}, though {newest} was saved: {event.notice.text}"
            assert "could not be used" not in event.notice.text, event.notice.text
            newest = step


def assert_no_leftovers(run_folder):
    leftovers = {path.name for path in pathlib.Path(run_folder).iterdir()} - FILES_OF_A_RUN
    assert all(name.startswith("step-") and "." not in name for name in leftovers), leftovers


@pytest.mark.slow
@pytest.mark.long
def test_a_job_killed_at_every_point_of_a_save_resumes_from_the_newest_checkpoint(cluster, tmp_path):
    seed = os.environ.get("TRAINYARD_FAULTS_SEED") or str(random.SystemRandom().getrandbits(32))
    print(f"TRAINYARD_FAULTS_SEED={seed}")
    run = tmp_path / "run"
    loop = fault_loop.FaultLoop(cluster)
    loop.start()
    schedule = {"kind": "constant", "warmup_steps": 0}
    job = loop.submit(draw_faults(seed, KILLS), run_folder=run, train__steps=1_000_000, train__schedule=schedule,
                      checkpoint__every_steps=SAVE_EVERY, checkpoint__keep=3, recovery__max_restarts=100_000)

    kills = 0
    for fault in loop.carry_out():
        kills += 1
        print(f"{kills}: {fault}", flush=True)

    cluster.server_info()
    last_step = cluster.get(job).job.last_step
    cluster.wait_for_step(job, last_step + 2 * SAVE_EVERY)
    cluster.trainctl("cancel", job)
    view = cluster.wait_for_end(job)
    assert view.state_name == "CANCELLED", view.job.reason
    assert kills >= KILLS
    check_restores(cluster.watch(job))
    assert_no_leftovers(run)
    cluster.trainctl("checkpoint", "verify", run)
    assert view.job.checkpoints[-1].step >= last_step
    losses = harness.metrics_steps(run)
    assert sorted(losses) == list(range(1, len(losses) + 1))
    reference = cluster.submit(run_folder=tmp_path / "undisturbed", train__steps=len(losses), train__schedule=schedule)
    assert cluster.wait_for_end(reference, 120 + len(losses) / 100).state_name == "SUCCEEDED"
    undisturbed = harness.metrics_steps(tmp_path / "undisturbed")
    assert {step: losses[step] for step in undisturbed} == undisturbed


def test_a_lost_store_loses_no_checkpoint(cluster, tmp_path):
    """Kills everything when a save is complete except for its final name, and removes the state of coordinator and
    daemons."""
    run = tmp_path / "run"
    loop = fault_loop.FaultLoop(cluster)
    loop.start()
    loop.submit([fault_loop.Fault("rename:partial:before", 0, "all", 3)], run_folder=run, train__steps=1_000_000,
                checkpoint__every_steps=SAVE_EVERY)
    restart, loop.restart_dead_programs = loop.restart_dead_programs, lambda: None
    for _ in loop.carry_out():
        harness.wait_until(lambda: not harness.trainers(), "no trainer is left")
    complete = 3 * SAVE_EVERY
    for name in ("coordinator", "worker-h1", "worker-h2"):
        shutil.rmtree(tmp_path / name)

    restart()
    harness.wait_until(lambda: cluster.server_info().hosts == 2, "both daemons are attached")
    job = cluster.submit(run_folder=run, flags=["--resume"], train__steps=complete + 20)

    assert cluster.wait_for_end(job).state_name == "SUCCEEDED"
    restored = [event.notice.text for event in cluster.watch(job) if event.HasField("notice")
                and "restored" in event.notice.text]
    assert f"restored from step {complete}," in restored[0], restored
    assert_no_leftovers(run)


def newest_checkpoint(run):
    return max(path for path in run.iterdir() if path.name.startswith("step-") and "." not in path.name)


def flip_a_bit(folder, rng):
    """Flips a random bit of a random file of a checkpoint; returns a description."""
    file = rng.choice(sorted(folder.iterdir()))
    at, bit = rng.randrange(file.stat().st_size), rng.randrange(8)
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1 << bit]))
    return f"bit {bit} of byte {at} of {file.name}"


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.long)])
def test_after_each_flipped_bit_the_job_resumes_from_the_previous_checkpoint(cluster, tmp_path, count):
    run, rng = tmp_path / "run", random.Random(7)
    loop = fault_loop.FaultLoop(cluster)
    loop.start()
    faults = [fault_loop.Fault("rename:step:before", 0, "self", 2) for _ in range(count)]
    job = loop.submit(faults, run_folder=run, train__steps=1_000_000, checkpoint__every_steps=SAVE_EVERY,
                      checkpoint__keep=4,
                      recovery__max_restarts=1000)
    flips = []

    # Rank 0 waits at the removal of an old checkpoint, so nothing newer is published until the next generation resumes.
    original_kill = loop.kill

    def flip_and_kill(fault, pid):
        newest = newest_checkpoint(run)
        step = int(newest.name.removeprefix("step-"))
        harness.wait_until(lambda: any(each.step == step for each in cluster.get(job).job.checkpoints),
                           f"{newest} is recorded")
        flips.append((step, flip_a_bit(newest, rng)))
        original_kill(fault, pid)

    loop.kill = flip_and_kill
    for _ in loop.carry_out():
        pass

    harness.wait_until(lambda: cluster.get(job).job.restarts >= count and cluster.get(job).state_name == "RUNNING",
                       "the job runs again")
    why = cluster.trainctl("why", job).stdout
    notices = [text for line in json.loads(cluster.trainctl("why", job, "--json").stdout)["chain"]
               if "could not be used" in (text := json.dumps(line))]
    for step, what in flips:
        reported = any(f"step {step} could not be used" in text for text in notices)
        assert reported, f"{what} of step {step} is not reported: {why}"
    # Damaged checkpoints stay until their step is saved again.
    harness.wait_until(lambda: cluster.get(job).job.checkpoints[-1].step > max(step for step, _ in flips),
                       "the damaged checkpoints are replaced")
    cluster.trainctl("cancel", job)
    assert cluster.wait_for_end(job).state_name == "CANCELLED"
    cluster.trainctl("checkpoint", "verify", run)
