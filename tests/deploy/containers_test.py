"""The manifests against the schemas of Kubernetes, and the hooks of the workers against local daemons of Trainyard."""

import concurrent.futures
import json
import os
import signal
import subprocess

import kubernetes_validate
import pytest
import yaml

import harness
import manifests

HOOKS = manifests.DEPLOY / "kubernetes" / "base" / "hooks"


@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_manifests_are_strictly_valid(overlay):
    objects = manifests.rendered(f"overlays/{overlay}")
    assert len(objects) >= 9
    for item in objects:
        manifests.validate(item)

    objects[1]["no_such_field"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        manifests.validate(objects[1], manifests.KUBERNETES_VERSIONS[:1])
    del objects[1]["no_such_field"]


@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_pods_run_without_privileges_and_mount_what_exists(overlay):
    objects = manifests.rendered(f"overlays/{overlay}")
    names = {(item["kind"], item["metadata"]["name"]) for item in objects}
    pods = manifests.pods(objects)
    assert set(pods) == {"coordinator", "worker"}
    for component, pod in pods.items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False and spec["securityContext"]["runAsNonRoot"] is True
        claims = {"state"} if component == "coordinator" else set()
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for container in spec["containers"] + spec.get("initContainers", []):
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]} and security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True and container["resources"]["limits"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes) | claims
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
            if "secret" in volume:
                assert volume["secret"]["secretName"] == "trainyard-token"
        labels = pod["metadata"]["labels"].items()
        (service,) = [item for item in objects if item["kind"] == "Service"
                      and item["metadata"]["name"] == f"trainyard-{component}"]
        assert service["spec"]["selector"].items() <= labels
        ports = {port["name"] for port in spec["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_gpu_workers_are_one_pod_on_each_gpu_node_and_others_are_a_stateful_set():
    kinds = {overlay: {item["kind"] for item in manifests.rendered(f"overlays/{overlay}")
                       if item["metadata"]["name"] == "trainyard-worker"} for overlay in manifests.OVERLAYS}
    worker = manifests.pods(manifests.rendered("overlays/gpu"))["worker"]["spec"]

    assert "StatefulSet" in kinds["cpu"] and "PodDisruptionBudget" in kinds["cpu"]
    assert "DaemonSet" in kinds["gpu"] and not kinds["gpu"] & {"StatefulSet", "PodDisruptionBudget"}
    assert worker["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    for container in worker["containers"] + worker["initContainers"]:
        assert container["image"] == f"trainyard-worker-cuda:{manifests.VERSION}"
        (name,) = [entry for entry in container["env"] if entry["name"] == "TRAINYARD_NAME"]
        assert name["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"


def test_the_component_for_the_prometheus_operator_finds_the_services_and_names_the_scrape_jobs():
    monitors = manifests.rendered("components/monitoring")
    services = [item for item in manifests.rendered("overlays/cpu") if item["kind"] == "Service"]
    jobs = yaml.safe_load((manifests.DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]

    (spec,) = [item["spec"] for item in monitors]

    for service in services:
        assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert spec["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert {service["metadata"]["name"] for service in services} == {job["job_name"] for job in jobs}


def run_hook(cluster, name, host, **variables):
    env = {**os.environ, **variables, "TRAINCTL": str(harness.BIN / "trainctl"), "TRAINYARD_NAME": host,
           "TRAINYARD_COORDINATOR": cluster.coordinator.address}
    return subprocess.run(["sh", HOOKS / name], env=env, capture_output=True, text=True, timeout=60)


def test_a_worker_that_ends_waits_for_a_coordinator_that_restarts(cluster):
    cluster.start_coordinator()
    cluster.start_worker("h1", 2, "--metrics", "", "--health", "")
    port = int(cluster.coordinator.address.rpartition(":")[2])
    cluster.coordinator.signal(signal.SIGKILL)
    cluster.coordinator.wait()
    # Stands for /proc of a container in which a trainer runs.
    shim = cluster.folder / "proc" / "7" / "comm"
    shim.parent.mkdir(parents=True)
    shim.write_text("trainyard-shim\n")
    proc = {"TRAINYARD_PROC": str(cluster.folder / "proc")}
    absent = run_hook(cluster, "drain-host.sh", "h1", TRAINYARD_DRAIN_TRIES="1", **proc)
    assert absent.returncode == 1
    with concurrent.futures.ThreadPoolExecutor() as threads:
        hook = threads.submit(run_hook, cluster, "drain-host.sh", "h1", **proc)
        cluster.start_coordinator(port=port)
        stopped = hook.result()

    assert stopped.returncode == 0, stopped.stderr
    assert host_status(cluster, "h1")["cordoned"]


def test_a_worker_without_ranks_does_not_wait_for_a_coordinator_that_was_removed(cluster):
    cluster.start_coordinator()
    cluster.coordinator.signal(signal.SIGKILL)
    cluster.coordinator.wait()
    (cluster.folder / "proc" / "1").mkdir(parents=True)
    (cluster.folder / "proc" / "1" / "comm").write_text("trainyard-worke\n")

    stopped = run_hook(cluster, "drain-host.sh", "h1", TRAINYARD_PROC=str(cluster.folder / "proc"))

    assert stopped.returncode == 0, stopped.stderr


def test_a_worker_that_ends_repeats_a_drain_that_the_coordinator_cannot_record(tmp_path):
    """A program that stands for trainctl refuses the first two drains, as a coordinator whose disk is full does."""
    shim = tmp_path / "proc" / "7" / "comm"
    shim.parent.mkdir(parents=True)
    shim.write_text("trainyard-shim\n")
    programs = {"trainctl": f"""#!/bin/sh
cd {tmp_path}
if [ "$2" = drain ]; then echo "$3: $5" >> calls; [ "$(wc -l < calls)" -ge 3 ] || exit 3; exit; fi
if [ -e calls ]; then echo '{{"name":"h1","jobs":[]}}'; else echo '{{"name":"h1","jobs":["job1"]}}'; fi
""", "sleep": "#!/bin/sh\n"}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TRAINCTL": str(tmp_path / "trainctl"),
           "TRAINYARD_NAME": "h1", "TRAINYARD_PROC": str(tmp_path / "proc")}

    def run(tries):
        (tmp_path / "calls").unlink(missing_ok=True)
        return subprocess.run(["sh", HOOKS / "drain-host.sh"], env={**env, "TRAINYARD_DRAIN_TRIES": tries},
                              capture_output=True, text=True, timeout=60)

    done = run("3")

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == ["h1: pod is ending"] * 3
    assert run("2").returncode == 1


def host_status(cluster, name):
    hosts = {host["name"]: host for host in harness.events(cluster.trainctl("cluster", "--json").stdout)}
    return hosts[name]


def test_the_hooks_of_a_worker_move_its_jobs_and_keep_the_cordons_of_operators(cluster):
    cluster.start_coordinator()
    for name in ("h1", "h2"):
        cluster.start_worker(name, 2, "--metrics", "", "--health", "")
    job = cluster.submit(train__steps=1_000_000)
    cluster.wait_for_step(job, 5)
    host = next(rank.host for rank in cluster.get(job).job.ranks)

    stopped = run_hook(cluster, "drain-host.sh", host)

    assert stopped.returncode == 0, stopped.stderr
    assert host_status(cluster, host)["jobs"] == [] and host_status(cluster, host)["cordoned"]
    cluster.wait_for_state(job, "RUNNING")
    allowed = run_hook(cluster, "allow-host.sh", host)
    assert allowed.returncode == 0, allowed.stderr
    assert not host_status(cluster, host)["cordoned"], allowed.stdout

    cluster.trainctl("cordon", host, "--reason", "fan is loud")
    for hook in ("drain-host.sh", "allow-host.sh", "drain-host.sh", "allow-host.sh"):
        assert run_hook(cluster, hook, host).returncode == 0
    assert host_status(cluster, host)["cordon_reason"] == "drained: fan is loud"
    assert run_hook(cluster, "allow-host.sh", "h3").returncode == 0


def test_before_a_release_is_removed_its_jobs_save_and_resume_after_a_new_installation(cluster):
    cluster.start_coordinator()
    for name in ("h1", "h2"):
        cluster.start_worker(name, 1, "--metrics", "", "--health", "")
    job = cluster.submit(train__steps=1_000_000, resources__ranks=2)
    cluster.wait_for_step(job, 5)
    for name in ("h1", "h2"):  # ranks stay on a host that is cordoned
        cluster.trainctl("cordon", name, "--reason", "fan is loud")

    drained = run_hook(cluster, "drain-all.sh", "")

    assert drained.returncode == 0 and not drained.stderr, drained.stderr
    assert all(host_status(cluster, name)["jobs"] == [] for name in ("h1", "h2"))
    saved = cluster.get(job).job.checkpoints[-1].step
    assert saved >= 5
    for name in ("h1", "h2"):
        assert run_hook(cluster, "allow-host.sh", name).returncode == 0
        assert host_status(cluster, name)["cordoned"], "an operator has cordoned it"
        cluster.trainctl("uncordon", name)
    cluster.wait_for_step(job, saved + 1)

    cluster.coordinator.signal(signal.SIGKILL)
    cluster.coordinator.wait()
    unanswered = run_hook(cluster, "drain-all.sh", "", TRAINYARD_DRAIN_TRIES="1")
    assert unanswered.returncode == 0 and "does not answer" in unanswered.stderr


def test_before_a_release_is_removed_each_host_is_drained_once_under_its_own_name(tmp_path):
    """A program that stands for trainctl answers that the hosts have ranks, until three hosts have been drained."""
    hosts = [{"event": "host", "name": f"w{i}", "cordoned": cordoned, "cordon_reason": reason, "jobs": jobs,
              "gpu_devices": [{"index": 0, "name": "NVIDIA H200"}]}
             for i, (cordoned, reason, jobs) in enumerate((
                 (False, "", ["job1"]), (False, "", []), (True, "drained: fan is loud", ["job1"]), (True, "", [])))]
    (tmp_path / "before").write_text("".join(json.dumps(host, separators=(",", ":")) + "\n" for host in hosts))
    trainctl = tmp_path / "trainctl"
    trainctl.write_text(f"""#!/bin/sh
cd {tmp_path}
if [ "$2" = drain ]; then echo "$3: $5" >> calls; exit; fi
if [ -e calls ] && [ "$(wc -l < calls)" -ge 3 ]; then echo '{{"jobs":[]}}'; else cat before; fi
""")
    trainctl.chmod(0o755)

    done = subprocess.run(["sh", HOOKS / "drain-all.sh"], env={**os.environ, "TRAINCTL": str(trainctl)},
                          capture_output=True, text=True, timeout=60)

    assert done.returncode == 0 and not done.stderr, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == [
        "w0: pod is ending", "w1: pod is ending", "w2: fan is loud"]


def test_messages_in_the_guide_are_those_of_the_programs():
    rows = (harness.ROOT / "docs" / "operators.md").read_text().split("## Messages and what to do")[1]
    messages = [part for row in rows.splitlines() if row.startswith("| `")
                for quoted in row.split("|")[1].split("`")[1::2] for part in quoted.split(" ... ")]
    assert len(messages) >= 10
    # The sources without the line breaks between parts of a text.
    sources = "".join(path.read_text() for folder in ("common", "coordinator", "worker")
                      for path in (harness.ROOT / folder).rglob("*.cc"))
    sources = "".join(sources.replace('"\n', "\n").split("\n"))
    plain = " ".join(sources.replace('"', "").split())
    missing = [message for message in messages if message not in plain]
    assert not missing
