"""A client of the coordinator's HTTP port with only Python's standard library: calls, lines and streams of events."""

import http.client
import json

import tokens


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


def connect(cluster, timeout=60):
    return http.client.HTTPConnection("127.0.0.1", cluster.metrics_port, timeout=timeout)


def headers_for(cluster, token, extra):
    token = tokens.read(cluster.coordinator.address) if token is None else token
    return {**({"Authorization": f"Bearer {token}"} if token else {}), **extra}


def get(cluster, path, token=None, **headers):
    """Sends a GET request. `token`: None for the token of this user, "" for no token."""
    connection = connect(cluster)
    connection.request("GET", path, headers=headers_for(cluster, token, headers))
    response = connection.getresponse()
    return Answer(response.status, response.headers, response.read().decode())


def post(cluster, method, body, token=None, **headers):
    """Calls a method of JobService; `body` is a text, or an object that is sent as JSON."""
    connection = connect(cluster)
    text = body if isinstance(body, (str, bytes)) else json.dumps(body)
    extra = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request("POST", f"/api/v1/JobService/{method}", text, headers_for(cluster, token, extra))
    response = connection.getresponse()
    return Answer(response.status, response.headers, response.read().decode())


def lines(cluster, method, body):
    """The objects of a streaming method, one per line."""
    connection = connect(cluster)
    extra = {"Content-Type": "application/json"}
    connection.request("POST", f"/api/v1/JobService/{method}", json.dumps(body), headers_for(cluster, None, extra))
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.headers["Content-Type"].startswith("application/x-ndjson")
    for line in response:
        yield json.loads(line)


class Events:
    """A stream of events. Iterating yields (name, data, id) until the connection ends."""

    def __init__(self, cluster, path, last_id="", token=None, **headers):
        extra = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {}), **headers}
        self.connection = connect(cluster)
        self.connection.request("GET", path, headers=headers_for(cluster, token, extra))
        self.response = self.connection.getresponse()
        self.last_id = last_id

    def __iter__(self):
        name, data, event_id = "message", [], None
        try:
            for raw in self.response:
                line = raw.decode().rstrip("\n")
                if line.startswith("data: "):
                    data.append(line[6:])
                elif line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("id: "):
                    event_id = line[4:]
                elif not line:
                    if data:
                        self.last_id = event_id or self.last_id
                        yield name, json.loads("\n".join(data)), event_id
                    name, data, event_id = "message", [], None
        except (OSError, http.client.HTTPException):
            return

    def close(self):
        self.response.close()  # the response holds the socket, too
        self.connection.close()
