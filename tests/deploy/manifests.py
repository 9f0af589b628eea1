"""What the files in deploy/ contain: rendered manifests of Kubernetes, and the command lines of all programs."""

import functools
import json
import re
import shlex
import subprocess

import kubernetes_validate
import yaml

import harness

DEPLOY = harness.ROOT / "deploy"
KUBECTL = harness.ROOT / ".deps" / "python" / "bin" / "kubectl"
OVERLAYS = ("cpu", "gpu")
VERSION = re.search(r"project\(trainyard VERSION ([\d.]+)", (harness.ROOT / "CMakeLists.txt").read_text())[1]
# The newest version, and the oldest version that the chart accepts (kubeVersion in Chart.yaml).
KUBERNETES_VERSIONS = ("1.37", "1.27")


def validate(item, versions=KUBERNETES_VERSIONS):
    """Raises kubernetes_validate.ValidationError unless the object follows the schemas strictly."""
    for version in versions:
        kubernetes_validate.validate(item, version, strict=True)


@functools.cache
def rendered(overlay):
    """The objects of an overlay, as kubectl applies them."""
    done = subprocess.run([KUBECTL, "kustomize", DEPLOY / "kubernetes" / overlay], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def pods(objects):
    """{name of the component: template of its pods}."""
    return {item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]["template"]
            for item in objects if item["kind"] in ("StatefulSet", "DaemonSet")}


INIT = ["/usr/bin/tini", "--"]


@functools.cache
def stages():
    """{stage of the Dockerfile: [(instruction, its text)]}, with continued lines joined."""
    found = {}
    for line in re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines():
        if match := re.match(r"FROM .* AS ([\w-]+)$", line):
            stage = found[match[1]] = []
        elif found and (match := re.match(r"([A-Z]+) (.*)$", line)):
            stage.append((match[1], match[2]))
    return found


def instruction(stage, name):
    """The text of the only instruction of this name in a stage."""
    (text,) = [text for kind, text in stages()[stage] if kind == name]
    return text


def entry_points():
    """{stage of the Dockerfile: its ENTRYPOINT without the init}."""
    found = {}
    for stage, instructions in stages().items():
        if "ENTRYPOINT" in dict(instructions):
            command = json.loads(instruction(stage, "ENTRYPOINT"))
            assert command[:2] == INIT, command
            found[stage] = command[2:]
    return found


def health_check(stage):
    return json.loads(instruction(stage, "HEALTHCHECK").partition("CMD ")[2])


def image_packages():
    """{image: the Debian packages that its root file system is made of, without what they depend on}."""
    runs = " && ".join(text for kind, text in stages()["roots"] if kind == "RUN")
    return {name: set(packages.split()) for name, packages in re.findall(r"root\.sh /roots/(\w+) ([^&]*)", runs)}


def dockerfile_commands():
    return [entry_points()["coordinator"] + json.loads(instruction("coordinator", "CMD"))]


def compose_commands():
    services = yaml.safe_load((harness.ROOT / "docker-compose.yml").read_text())["services"]
    return [entry_points()[service["build"]["target"]] + service["command"]
            for service in services.values() if "build" in service and "command" in service]


def kubernetes_commands(overlay):
    commands = []
    for name, pod in pods(rendered(f"overlays/{overlay}")).items():
        (container,) = pod["spec"]["containers"]
        values = {entry["name"]: entry.get("value", f"host-{name}") for entry in container.get("env", [])}
        arguments = [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], text) for text in container["args"]]
        commands.append(entry_points()[name] + arguments)
    return commands


def systemd_commands():
    """The command of each unit, with the configuration file in deploy/systemd."""
    texts = [path.read_text() for path in sorted((DEPLOY / "systemd").glob("*.service"))]
    commands = [shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1]) for text in texts]
    return [[part.replace("/etc/trainyard/", f"{DEPLOY}/systemd/") if part.endswith(".yaml") else part
             for part in command] for command in commands]
