"""A Prometheus server for tests, and its promtool: the programs of Debian's package, which ./dev setup unpacks."""

import contextlib
import json
import pathlib
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import yaml

import harness

PROGRAMS = pathlib.Path(harness.ROOT / ".deps" / "programs" / "usr" / "bin")


def promtool(*arguments, stdin=None):
    """Runs promtool and returns its output. Fails if promtool finds a problem."""
    done = subprocess.run([PROGRAMS / "promtool", *map(str, arguments)], input=stdin, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, f"promtool {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class Server:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path, **parameters):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            answer = json.load(urllib.request.urlopen(url, timeout=10))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        """The series of an instant query: [(labels, value)]."""
        data = self.get("query", query=expression)
        assert data["resultType"] == "vector", f"{expression} is a {data['resultType']}, not a vector"
        return [(series["metric"], float(series["value"][1])) for series in data["result"]]

    def all_targets_are_up(self):
        targets = self.get("targets", state="active")["activeTargets"]
        return targets and all(target["health"] == "up" for target in targets)


@contextlib.contextmanager
def serving(folder, arguments):
    """A server with these arguments, on a free port; ready when it has scraped every target."""
    port = harness.free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAMS / "prometheus", *arguments, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        server = Server(port)

        def ready():
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            try:
                return server.all_targets_are_up()
            except (OSError, AssertionError):
                return False

        harness.wait_until(ready, "Prometheus has scraped every target")
        yield server
    finally:
        process.kill()
        process.wait(60)


@contextlib.contextmanager
def running(folder, targets):
    """A server that scrapes every second. `targets`: {name of the scrape job: [host:port]}."""
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
              "rule_files": [str(harness.ROOT / "deploy" / "prometheus" / "alerts.yaml")],
              "scrape_configs": [{"job_name": name, "static_configs": [{"targets": addresses}]}
                                 for name, addresses in targets.items()]}
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    with serving(folder, [f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}"]) as server:
        yield server
