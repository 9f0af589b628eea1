"""docker-compose.yml: its schema, and its services as processes on this host, with the same arguments but other ports
and folders. Grafana is not started, because Debian does not package it."""

import pathlib
import shutil
import subprocess
import sys

import yaml

import harness
import local
import manifests
import prometheus

COMPOSE = harness.ROOT / "docker-compose.yml"
SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]


def test_the_compose_file_follows_the_schema_and_names_existing_files(tmp_path):
    def check(path):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = check(COMPOSE)

    assert done.returncode == 0, done.stdout + done.stderr
    document = yaml.safe_load(COMPOSE.read_text())
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]]
    assert {name for name in mounted if name[0] not in "./$"} == set(document["volumes"])
    assert all((harness.ROOT / name).exists() for name in mounted if name.startswith("./"))
    document["services"]["worker-1"]["shm_sise"] = "2gb"
    (tmp_path / "wrong.yml").write_text(yaml.safe_dump(document))
    assert "shm_sise" in check(tmp_path / "wrong.yml").stdout


def test_every_service_is_pinned_or_built_and_the_images_run_as_another_user_with_an_init():
    assert {"coordinator", "worker-1", "worker-2", "prometheus", "grafana"} <= set(SERVICES)
    for service in SERVICES.values():
        if "build" in service:
            stage = service["build"]["target"]
            assert manifests.instruction(stage, "USER") == "1000:1000"
            assert stage in manifests.entry_points() and "init" not in service
            assert service.get("entrypoint", manifests.INIT)[:2] == manifests.INIT
        else:
            assert service["image"].partition(":")[2] not in ("", "latest")


def health_check(cluster, paths, stage, index):
    """Runs the HEALTHCHECK of an image against the coordinator, or the daemon with this index."""
    address = {"coordinator": f"127.0.0.1:{paths.port}"}.get(stage) or f"127.0.0.1:{paths.metrics['7073'][index]}"
    command = manifests.health_check(stage)
    assert command[0] == "/opt/trainyard/bin/trainctl" and command[2] in ("127.0.0.1:7070", "127.0.0.1:7073")
    return subprocess.run([harness.BIN / "trainctl", "health", address, *command[3:]], capture_output=True, text=True,
                          timeout=30)


def prometheus_command(cluster, paths):
    """The command of the service prometheus, with its configuration for the ports of this test."""
    folder = cluster.folder / "prometheus"
    shutil.copytree(manifests.DEPLOY / "prometheus", folder)
    config = yaml.safe_load((folder / "prometheus.yaml").read_text())
    config["global"]["scrape_interval"] = "1s"
    used = {"coordinator:7071": paths.metrics["7071"][0], "worker-1:7072": paths.metrics["7072"][0],
            "worker-2:7072": paths.metrics["7072"][1]}
    for scrape in config["scrape_configs"]:
        for entry in scrape["static_configs"]:
            entry["targets"] = [f"127.0.0.1:{used.pop(target)}" for target in entry["targets"]]
    assert not used
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    # The service mounts the two folders that this command uses.
    mounts = dict(reversed(volume.split(":")[:2]) for volume in SERVICES["prometheus"]["volumes"])
    assert mounts == {"/etc/prometheus": "./deploy/prometheus", "/prometheus": "prometheus"}
    return [part.replace("=/etc/prometheus/", f"={folder}/").replace("=/prometheus", f"={cluster.folder}/tsdb")
            for part in SERVICES["prometheus"]["command"]]


def test_the_services_run_a_job_that_prometheus_sees(cluster):
    paths = local.Local(cluster.folder)

    assert local.start(cluster, paths, manifests.compose_commands()) == 2

    local.wait_until_attached(cluster, 2)
    for stage, index in (("coordinator", 0), ("worker", 0), ("worker", 1)):
        checked = health_check(cluster, paths, stage, index)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    with prometheus.serving(cluster.folder, prometheus_command(cluster, paths)) as server:
        # Two containers have one slot each.
        job = cluster.submit(train__steps=1_000_000, resources__ranks=2)
        steps = f'trainyard_job_step{{job_id="{job}"}} > 5'
        harness.wait_until(lambda: server.query(steps), "Prometheus sees steps", 60)
        up = {labels["job"]: value for labels, value in server.query("sum by (job) (up)")}
        assert up == {"trainyard-coordinator": 1, "trainyard-worker": 2}
        assert server.get("rules")["groups"]
    hosts = harness.events(cluster.trainctl("cluster", "--json").stdout)
    assert {host["name"]: host["jobs"] for host in hosts} == {"worker-1": [job], "worker-2": [job]}
    cluster.programs[-1].signal(9)
    harness.wait_until(lambda: health_check(cluster, paths, "worker", 1).returncode == 3, "the check sees the loss")


def test_trainctl_of_the_compose_file_finds_the_coordinator_and_its_example_is_valid(cluster):
    service = SERVICES["trainctl"]
    comment = next(line for line in COMPOSE.read_text().splitlines() if "trainctl submit" in line)
    cluster.start_coordinator()

    example = comment.partition("trainctl submit ")[2].split()
    file = harness.ROOT / pathlib.Path(example[0]).relative_to("/opt/trainyard")
    arguments = [part.strip("'").replace("/data", "/usr/include") for part in example[1:]]
    done = subprocess.run([harness.BIN / "trainctl", *service["entrypoint"][3:], "validate", file, *arguments],
                          capture_output=True, text=True, timeout=60)

    assert service["environment"] == {"TRAINYARD_COORDINATOR": "coordinator:7070"}
    assert done.returncode == 0, done.stderr
