"""The idle share of a pipeline, measured from the traces of its ranks (`diagnostics.events`), and the one that
`trainctl schedule` simulates for the same durations.

The outermost entries `forward` and `backward` of a trace are whole passes of one micro-batch; the rest of a step is
time in which the stage waits, sends or receives. A step of the pipeline lasts from the first pass on any stage until
the end of the last one on any stage, and a stage that has finished earlier is idle until then. Traces of one host share
a clock.
"""

import collections
import dataclasses
import json
import statistics
import subprocess

import sides


@dataclasses.dataclass(frozen=True)
class Idle:
    share: float     # of the time of all stages
    forward: list    # mean duration of each stage, in seconds
    backward: list


def passes_of(trace):
    """The passes of a rank: {step: [(kind, begin, end)]} in microseconds, in order."""
    passes = collections.defaultdict(list)
    entries = [entry for entry in trace["traceEvents"]
               if entry["ph"] == "X" and entry["cat"] in ("forward", "backward")]
    end = float("-inf")
    for entry in sorted(entries, key=lambda entry: (entry["ts"], -entry["dur"])):
        if entry["ts"] < end:  # a unit of the pass
            continue
        end = entry["ts"] + entry["dur"]
        passes[entry["args"]["step"]].append((entry["cat"], entry["ts"], end))
    return passes


def idle_in(traces, first_step, micro_batches):
    """The idle share over the steps from `first_step`. `traces`: one trace per stage, in the order of stages."""
    stages = [passes_of(trace) for trace in traces]
    steps = sorted(step for step in stages[0] if step >= first_step)
    if not steps:
        raise sides.MeasurementFailed(f"the traces contain no step {first_step} or later")
    total, durations = 0, [collections.defaultdict(list) for _ in stages]
    for step in steps:
        for stage, passes in enumerate(stages):
            kinds = collections.Counter(kind for kind, _, _ in passes[step])
            if kinds != {"forward": micro_batches, "backward": micro_batches}:
                raise sides.MeasurementFailed(f"expected {micro_batches} forward and backward passes of stage {stage} "
                                              f"in step {step}; the trace contains {dict(kinds)}")
            for kind, begin, end in passes[step]:
                durations[stage][kind].append(end - begin)
        total += max(passes[step][-1][2] for passes in stages) - min(passes[step][0][1] for passes in stages)
    busy = sum(sum(times) for stage in durations for times in stage.values())
    means = {kind: [statistics.mean(stage[kind]) / 1e6 for stage in durations] for kind in ("forward", "backward")}
    return Idle(1 - busy / (len(stages) * total), means["forward"], means["backward"])


def read(run_folder, stages, first_step, micro_batches):
    paths = [run_folder / "diagnostics" / f"trace-rank-{rank:05}.json" for rank in range(stages)]
    if missing := [path.name for path in paths if not path.exists()]:
        raise sides.MeasurementFailed(f"the run has not written {', '.join(missing)}")
    return idle_in([json.loads(path.read_text()) for path in paths], first_step, micro_batches)


def simulated_share(idle, schedule, micro_batches):
    """The idle share that `trainctl schedule` gives for these durations if transfers take no time."""
    def joined(durations):
        return ",".join(map(str, durations))

    command = [sides.BIN / "trainctl", "schedule", "--stages", len(idle.forward), "--micro-batches", micro_batches,
               "--schedule", schedule, "--forward", joined(idle.forward), "--backward", joined(idle.backward), "--json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise sides.MeasurementFailed(f"trainctl schedule ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)["schedules"][0]["bubble"]
