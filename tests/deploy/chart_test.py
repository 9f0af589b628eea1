"""The Helm chart: it installs the same objects as the overlays of Kustomize, and each of its values has an effect."""

import copy
import json
import subprocess
import tarfile

import pytest
import yaml

import charts
import manifests
import prometheus

# The paths of everything that the objects of a release have in addition to those of Kustomize.
ONLY_HELM = ("metadata.labels.app.kubernetes.io/instance", "metadata.labels.app.kubernetes.io/managed-by",
             "metadata.labels.app.kubernetes.io/version", "metadata.labels.helm.sh/chart",
             "metadata.annotations.helm.sh/resource-policy", "spec.selector.app.kubernetes.io/instance",
             "spec.selector.matchLabels.app.kubernetes.io/instance",
             "spec.template.metadata.labels.app.kubernetes.io/instance",
             "spec.podSelector.matchLabels.app.kubernetes.io/instance",
             "spec.ingress.0.from.0.podSelector.matchLabels.app.kubernetes.io/instance")


def leaves(value, path=""):
    """{dotted path: value} of everything that is not a filled mapping or list. A list of objects with names has no
    order."""
    found = {}
    if isinstance(value, list):
        value = {item["name"] if isinstance(item, dict) and "name" in item else index: item
                 for index, item in enumerate(value)} or value
    for key, item in value.items() if isinstance(value, dict) else ():
        found |= leaves(item, f"{path}.{key}" if path else str(key))
    return found or {path: value}


def identity(item):
    return item["kind"], item["metadata"]["name"]


def test_templates_and_kustomize_base_agree_and_helm_finds_no_problem(tmp_path):
    done = charts.chart_tool("--check", "--output", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(tmp_path / f"trainyard-{manifests.VERSION}.tgz") as archive:
        names = {name.removeprefix("trainyard/") for name in archive.getnames()}
        hook = archive.extractfile("trainyard/hooks/drain-host.sh").read()
    assert {"values.yaml", "values.schema.json", "values-gpu.yaml", "alerts.yaml", "dashboards/job.json"} <= names
    assert hook == (charts.CHART / "hooks" / "drain-host.sh").read_bytes()
    chart = charts.values("Chart.yaml")
    assert chart["version"] == chart["appVersion"] == manifests.VERSION


@pytest.mark.parametrize("overlay, values", [("cpu", {}), ("gpu", charts.values("values-gpu.yaml"))])
def test_a_release_has_the_objects_of_the_overlay(overlay, values):
    by_helm = {identity(item): leaves(item) for item in charts.rendered(values)[0]}
    by_kustomize = {identity(item): leaves(item) for item in manifests.rendered(f"overlays/{overlay}")}
    # Helm makes the namespace itself: `helm install --create-namespace`.
    del by_kustomize["Namespace", "trainyard"]

    assert set(by_helm) == set(by_kustomize)
    unused = set(ONLY_HELM)
    for name, ours in by_helm.items():
        added = {path for path in ours if path in ONLY_HELM and path not in by_kustomize[name]}
        unused -= added
        assert {path: value for path, value in ours.items() if path not in added} == by_kustomize[name], name
    assert not unused


DIGEST = "sha256:" + "0123456789abcdef" * 4
# For each path of values.yaml: a value other than the default, and the end of each path that this value changes in the
# objects.
CHANGES = [
    ("images.coordinator.repository", "registry.example/c", "containers.coordinator.image"),
    ("images.coordinator.tag", "9", "containers.coordinator.image"),
    ("images.coordinator.digest", DIGEST, "containers.coordinator.image"),
    ("images.worker.repository", "registry.example/w", "initContainers.allow-host.image"),
    ("images.worker.tag", "9", "initContainers.allow-host.image"),
    ("images.worker.digest", DIGEST, "initContainers.allow-host.image"),
    ("images.pullPolicy", "Always", "initContainers.allow-host.imagePullPolicy"),
    ("images.pullSecrets", [{"name": "registry"}], "imagePullSecrets.registry.name"),
    ("tokenSecret", "other", "secret.secretName"),
    ("coordinator.extraArgs", ["--log-level", "debug"], "containers.coordinator.args.9"),
    ("coordinator.resources.requests.cpu", "2", "requests.cpu"),
    ("coordinator.resources.requests.memory", "1Gi", "requests.memory"),
    ("coordinator.resources.limits.memory", "3Gi", "limits.memory"),
    ("coordinator.storage.size", "20Gi", "volumeClaimTemplates.0.spec.resources.requests.storage"),
    ("coordinator.storage.storageClassName", "fast", "volumeClaimTemplates.0.spec.storageClassName"),
    ("coordinator.storage.accessModes", ["ReadWriteOnce"], "volumeClaimTemplates.0.spec.accessModes.0"),
    ("workers.kind", "DaemonSet", "kind"),
    ("workers.replicas", 5, "spec.replicas"),
    ("workers.slots", "auto", "env.TRAINYARD_SLOTS.value"),
    ("workers.resources.requests.cpu", "3", "requests.cpu"),
    ("workers.resources.requests.memory", "1Gi", "requests.memory"),
    ("workers.resources.limits.memory", "3Gi", "limits.memory"),
    ("workers.gpus.count", 4, "limits.nvidia.com/gpu"),
    ("workers.gpus.resource", "amd.com/gpu", "limits.amd.com/gpu"),
    ("workers.sharedMemory", "64Gi", "emptyDir.sizeLimit"),
    ("workers.stateVolume", {"hostPath": {"path": "/var/lib/trainyard"}}, "volumes.state.hostPath.path"),
    ("workers.terminationGracePeriodSeconds", 60, "terminationGracePeriodSeconds"),
    ("workers.extraArgs", ["--log-level", "debug"], "containers.worker.args.15"),
    ("workers.extraEnv", [{"name": "NCCL_DEBUG", "value": "INFO"}], "env.NCCL_DEBUG.name"),
    ("workers.extraVolumes", [{"name": "data", "emptyDir": {}}], "volumes.data.name"),
    ("workers.extraVolumeMounts", [{"name": "data", "mountPath": "/data"}], "volumeMounts.data.mountPath"),
    ("runs.existingClaim", "mine", "persistentVolumeClaim.claimName"),
    ("runs.size", "1Ti", "spec.resources.requests.storage"),
    ("runs.storageClassName", "nfs", "spec.storageClassName"),
    ("runs.accessModes", ["ReadWriteOnce"], "spec.accessModes.0"),
    ("networkPolicy.enabled", False, "NetworkPolicy"),
    ("networkPolicy.monitoringNamespace", "prometheus", "matchLabels.kubernetes.io/metadata.name"),
    ("podDisruptionBudget.enabled", False, "PodDisruptionBudget"),
    ("podDisruptionBudget.maxUnavailable", "20%", "spec.maxUnavailable"),
    ("monitoring.serviceMonitor.enabled", True, "ServiceMonitor"),
    ("monitoring.serviceMonitor.interval", "30s", "endpoints.0.interval"),
    ("monitoring.serviceMonitor.labels", {"release": "p"}, "metadata.labels.release"),
    ("monitoring.alerts.enabled", True, "PrometheusRule"),
    ("monitoring.alerts.labels", {"release": "p"}, "metadata.labels.release"),
    ("monitoring.dashboards.enabled", True, "ConfigMap"),
    ("monitoring.dashboards.labels.grafana_dashboard", "2", "metadata.labels.grafana_dashboard"),
]
for _part in ("coordinator", "workers"):
    CHANGES += [(f"{_part}.podAnnotations", {"a": "b"}, "spec.template.metadata.annotations.a"),
                (f"{_part}.nodeSelector", {"disk": "fast"}, "spec.template.spec.nodeSelector.disk"),
                (f"{_part}.tolerations", [{"key": "gpu", "operator": "Exists"}], "spec.tolerations.0.key"),
                (f"{_part}.affinity", {"nodeAffinity": {}}, "spec.affinity.nodeAffinity"),
                (f"{_part}.topologySpreadConstraints",
                 [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
                 "topologySpreadConstraints.0.topologyKey"),
                (f"{_part}.priorityClassName", "high", "spec.template.spec.priorityClassName")]
# Values that have an effect only with others.
ALSO = {"monitoring": {name: {"enabled": True} for name in ("serviceMonitor", "alerts", "dashboards")}}
ALSO_FOR = {path: ALSO for path, _, _ in CHANGES if path.startswith("monitoring.") and not path.endswith("enabled")}
ALSO_FOR["workers.gpus.resource"] = charts.with_value("workers.gpus.count", 1)


def merged(first, second):
    result = copy.deepcopy(first)
    for key, value in second.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


@pytest.mark.slow
def test_each_value_changes_what_it_names_and_keeps_the_objects_valid():
    named = [path for path, _, _ in CHANGES]
    for leaf in leaves(charts.values("values.yaml")):
        assert any(leaf == path or leaf.startswith(f"{path}.") for path in named), f"no change for {leaf}"
    before = [ALSO_FOR.get(path, {}) for path, _, _ in CHANGES]
    after = [merged(also, charts.with_value(path, value)) for also, (path, value, _) in zip(before, CHANGES)]
    bases = [{}, ALSO, ALSO_FOR["workers.gpus.resource"]]

    rendered = charts.rendered(*bases, *after)

    for (path, _, end), also, new in zip(CHANGES, before, rendered[len(bases):]):
        old = rendered[bases.index(also)]
        different = [item for item in old + new if (item in old) != (item in new)]
        flat_old, flat_new = ({(*identity(item), leaf): value for item in items if item in different
                               for leaf, value in leaves(item).items()} for items in (old, new))
        changed = [key for key in flat_old.keys() | flat_new.keys() if flat_old.get(key, 0) != flat_new.get(key, 0)]
        assert any(key[0] == end or key[2].endswith(end) for key in changed), f"{path} changes only {changed}"
        for item in different:
            if item in new and not item["apiVersion"].startswith("monitoring."):
                manifests.validate(item, manifests.KUBERNETES_VERSIONS[:1])


def test_two_releases_in_a_namespace_do_not_select_the_pods_of_each_other():
    longest = "r" * 40
    first, second = (answer["texts"] for answer in charts.answers(
        {"values": {}, "name": "a", "namespace": "n"}, {"values": {}, "name": longest, "namespace": "n"}))
    everything = [charts.objects(texts) + charts.objects(texts, hooks=True) for texts in (first, second)]

    assert not {identity(item) for item in everything[0]} & {identity(item) for item in everything[1]}
    assert {item["metadata"]["namespace"] for items in everything for item in items} == {"n"}
    labels = [[pod["metadata"]["labels"].items() for pod in manifests.pods(items).values()] for items in everything]
    for items, others, own in zip(everything, reversed(labels), labels):
        selectors = [value for item in items for path, value in selectors_of(item)]
        assert len(selectors) >= 7
        for selector in selectors:
            assert any(selector.items() <= pod for pod in own), selector
            assert not any(selector.items() <= pod for pod in others), selector
    # A StatefulSet adds 11 characters to a label of its pods.
    assert all(len(item["metadata"]["name"]) + 11 <= 63 for item in everything[1])
    (refused,) = charts.answers({"values": {}, "name": longest + "r"})
    assert "use at most 40" in refused["error"]


def selectors_of(item, path=""):
    """(path, labels) of every selector of pods of this release."""
    for key, value in item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ():
        if key in ("selector", "podSelector") and isinstance(value, dict):
            selector = value.get("matchLabels", value)
            if "app.kubernetes.io/component" in selector:
                yield path, selector
        yield from selectors_of(value, f"{path}.{key}")


@pytest.mark.parametrize("path, value", [
    ("workers.slots", 0), ("workers.slots", 1025), ("workers.slots", "many"), ("workers.kind", "Deployment"),
    ("workers.replicas", -1),
    ("workers.gpus.count", "8"), ("workers.sharedMemory", "2 GB"), ("coordinator.storage.accessModes", []),
    ("images.worker.digest", "sha256:1"), ("images.worker.tagg", "1"), ("tokenSecret", ""), ("replicas", 2),
    ("coordinator.extraArgs", "--log-level debug"), ("workers.extraVolumes", [{"emptyDir": {}}])])
def test_wrong_and_unknown_values_are_refused_by_name(path, value):
    (answer,) = charts.answers({"values": charts.with_value(path, value)})

    assert path.rpartition(".")[2] in answer["error"] or path.replace(".", "/") in answer["error"], answer


def test_the_alerts_of_a_release_are_those_of_the_file_and_promtool_accepts_them(tmp_path):
    (release,) = charts.rendered(ALSO)
    (rule,) = [item for item in release if item["kind"] == "PrometheusRule"]
    dashboards = {name: text for item in release if item["kind"] == "ConfigMap" for name, text in item["data"].items()
                  if name.endswith(".json")}

    assert rule["spec"] == yaml.safe_load((manifests.DEPLOY / "prometheus" / "alerts.yaml").read_text())
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    prometheus.promtool("check", "rules", tmp_path / "rules.yaml")
    for path in (manifests.DEPLOY / "grafana" / "dashboards").glob("*.json"):
        assert json.loads(dashboards[f"trainyard-{path.name}"]) == json.loads(path.read_text())


def test_the_pods_of_helm_test_and_helm_uninstall_are_valid_and_may_connect():
    (answer,) = charts.answers({"values": {}})
    hooks = charts.objects(answer["texts"], hooks=True)

    assert {(item["kind"], item["metadata"]["annotations"]["helm.sh/hook"]) for item in hooks} == {
        ("Pod", "test"), ("Job", "pre-delete")}
    for item in hooks:
        manifests.validate(item)
        pod = item["spec"].get("template", item)
        assert pod["metadata"]["labels"]["trainyard-client"] == "true"
        (container,) = pod["spec"]["containers"]
        script = container["command"][-1]
        if script.startswith("/etc/trainyard/hooks/"):
            assert (charts.CHART / "hooks" / script.rpartition("/")[2]).exists()
        else:
            assert subprocess.run(["sh", "-n", "-c", script], check=False).returncode == 0


def test_the_notes_name_the_secret_and_the_namespace():
    (answer,) = charts.answers({"values": {"tokenSecret": "mine"}, "namespace": "training"})

    notes = answer["texts"]["NOTES.txt"]
    assert "--namespace training create secret generic mine" in notes
    assert "--from-literal" not in notes, "every user of the host can read the arguments of a program"
