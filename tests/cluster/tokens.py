"""The token of a coordinator on loopback, read as trainctl does, and a channel that adds it to each call."""

import collections
import os
import pathlib

import grpc


def folder():
    state = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local" / "state"
    return pathlib.Path(state) / "trainyard" / "tokens"


def path_of(address):
    """The file that a coordinator at `address` (127.0.0.1:PORT) writes its token to."""
    host, _, port = address.rpartition(":")
    network = os.stat("/proc/self/ns/net").st_ino
    return folder() / f"{os.uname().nodename}-{network}-{host.strip('[]')}-{port}"


def read(address):
    """The token; None if there is none."""
    try:
        return path_of(address).read_text().strip()
    except FileNotFoundError:
        return None


class _Details(collections.namedtuple("_Details", ("method", "timeout", "metadata", "credentials", "wait_for_ready",
                                                   "compression")), grpc.ClientCallDetails):
    pass


class _Bearer(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamUnaryClientInterceptor,
              grpc.StreamStreamClientInterceptor):
    """Adds the token to each call; reads it each time, because the coordinator may have been restarted."""

    def __init__(self, address):
        self._address = address

    def _intercept(self, call, details, request):
        token = read(self._address)
        metadata = list(details.metadata or [])
        if token:
            metadata.append(("authorization", f"Bearer {token}"))
        return call(_Details(details.method, details.timeout, metadata, details.credentials, details.wait_for_ready,
                             getattr(details, "compression", None)), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = _intercept


def dial(address, options=None):
    """A channel to the coordinator at `address`, as opened by a program of its user."""
    return grpc.intercept_channel(grpc.insecure_channel(address, options), _Bearer(address))
