"""The Helm chart, rendered by Helm's own library in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile

import yaml

import harness
import manifests

CHART = manifests.DEPLOY / "helm" / "trainyard"


def chart_tool(*arguments, stdin=None):
    """Runs tools/chart.py. It gets a home of its own, because Helm reads settings and plugins there."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run([sys.executable, harness.ROOT / "tools" / "chart.py", *map(str, arguments)], input=stdin,
                              capture_output=True, text=True, timeout=120,
                              env={"PATH": os.environ["PATH"], "HOME": home})


def answers(*requests):
    """Renders each request, which has the keyword arguments of `render` in tools/chart.py. Returns one answer for each:
    {"texts": {template: text}} or {"error": message}."""
    done = chart_tool("--render", stdin=json.dumps(requests))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def objects(texts, hooks=False):
    """The objects that Helm installs, or with `hooks` those of `helm test` and `helm uninstall`."""
    found = [item for name, text in texts.items() if name != "NOTES.txt"
             for item in yaml.safe_load_all(text) if item]
    return [item for item in found if ("helm.sh/hook" in item["metadata"].get("annotations", {})) == hooks]


def rendered(*all_values):
    """For each set of values: the objects of a release `trainyard` in the namespace `trainyard`."""
    result = []
    for answer in answers(*({"values": values} for values in all_values)):
        assert "error" not in answer, answer
        result.append(objects(answer["texts"]))
    return result


def values(name):
    return yaml.safe_load((CHART / name).read_text())


def with_value(path, value):
    """Values that set one dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value
