#!/usr/bin/env python3
"""Renders the objects in deploy/kubernetes from the Helm chart, so that both have one source, and checks the chart.

    chart.py                    writes the files of RENDERED, and checks the chart with Helm's own library
    chart.py --check            writes nothing; fails if a file differs from what the chart renders
    chart.py --output FOLDER    also packages the chart: FOLDER/trainyard-VERSION.tgz
    chart.py --render           for tests: renders each request from standard input; see `answer`

The files of RENDERED are what the chart renders for the release `trainyard` with VALUES in addition to its defaults,
without the lines for Helm alone.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import sys
import tempfile

import helm_python as helm

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "trainyard"
KUBERNETES = ROOT / "deploy" / "kubernetes"
# Each file, and the template that it is rendered from.
RENDERED = {KUBERNETES / "base" / "coordinator.yaml": "coordinator.yaml",
            KUBERNETES / "base" / "workers.yaml": "workers.yaml",
            KUBERNETES / "base" / "network.yaml": "network.yaml",
            KUBERNETES / "components" / "monitoring" / "service-monitor.yaml": "service-monitor.yaml"}
VALUES = {"monitoring": {"serviceMonitor": {"enabled": True}}}
HEADER = "# Rendered from deploy/helm/trainyard/templates/%s by ./dev chart; edit that file.\n"
# Lines about releases and Helm, which are useless for Kustomize.
ONLY_HELM = re.compile(r"^.*(app\.kubernetes\.io/(instance|managed-by|version)|helm\.sh/[\w-]+): .*\n", re.M)
NAMESPACE = re.compile(r"^  namespace: trainyard\n", re.M)


@contextlib.contextmanager
def without_notes_on_links():
    """Helm writes a line to standard error for each symbolic link in the chart; the links are intended, so these lines
    are left out."""
    saved = os.dup(2)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            lines.seek(0)
            for line in lines:
                if b"found symbolic link in path" not in line:
                    os.write(2, line)


def render(chart, values, name="trainyard", namespace="trainyard"):
    """{template: text}, without the name of the chart in the path of the template."""
    rendered = chart.render(values, name=name, namespace=namespace)
    return {path.removeprefix("trainyard/templates/"): text for path, text in rendered.items()}


def files():
    """{file: text that it should have}."""
    with helm.Chart.load(CHART) as chart:
        texts = render(chart, VALUES)
    result = {path: HEADER % name + ONLY_HELM.sub("", texts[name]).strip() + "\n" for path, name in RENDERED.items()}
    # The base's kustomization.yaml sets the namespace, so that patches of overlays need not name it.
    return {path: NAMESPACE.sub("", text) if path.parent.name == "base" else text for path, text in result.items()}


def problems_found_by_helm():
    """One line for each finding of `helm lint --strict`, with each file of values."""
    for path in sorted(CHART.glob("values*.yaml")):
        report = helm.lint(CHART, helm.values_from_yaml(path.read_text()), strict=True, namespace="trainyard")
        yield from (f"{path.name}: {error}" for error in report["errors"])
        yield from (f"{path.name}: {message['path']}: {message['error']}" for message in report["messages"]
                    if message["severity"] >= 2)


def answer(requests):
    """For each request {"values", "name", "namespace"}: {"texts": {template: text}}, or {"error": message}."""
    with helm.Chart.load(CHART) as chart:
        for request in requests:
            try:
                chart.validate_schema(request["values"])
                yield {"texts": render(chart, **request)}
            except helm.HelmError as error:
                yield {"error": str(error)}


def arguments_of(arguments):
    parser = argparse.ArgumentParser(prog="./dev chart", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", help="also package the chart into this folder")
    parser.add_argument("--render", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def make(options):
    stale = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    if options.check and stale:
        print(f"chart: {', '.join(str(path.relative_to(ROOT)) for path in stale)} differ from the chart; run ./dev "
              "chart.", file=sys.stderr)
        return 1
    for path, text in stale.items():
        path.write_text(text)
        print(f"chart: wrote {path.relative_to(ROOT)}")
    problems = list(problems_found_by_helm())
    for problem in problems:
        print(f"chart: {problem}", file=sys.stderr)
    if problems:
        return 1
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        print(f"chart: {helm.package(CHART, destination=options.output)}")
    print("chart: Helm finds no problem")
    return 0


def main(arguments):
    options = arguments_of(arguments)
    with without_notes_on_links():
        if options.render:
            json.dump(list(answer(json.load(sys.stdin))), sys.stdout)
            return 0
        return make(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
