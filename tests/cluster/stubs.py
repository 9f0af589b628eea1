"""Generates Python stubs from proto/ at test time, which proves that the schema is sufficient for another language."""

import importlib
import pathlib
import sys
import types

import grpc_tools
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make(folder):
    """Generates into `folder` and returns the modules as attributes: job, service, service_grpc, agent, and those of
    google.rpc: status and error_details."""
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    files = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
    code = protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", f"--python_out={folder}",
                        f"--grpc_python_out={folder}", *files])
    assert code == 0, f"protoc refused {files}"
    sys.path.insert(0, str(folder))
    return types.SimpleNamespace(
        job=importlib.import_module("trainyard.v1.job_pb2"),
        service=importlib.import_module("trainyard.v1.service_pb2"),
        service_grpc=importlib.import_module("trainyard.v1.service_pb2_grpc"),
        agent=importlib.import_module("trainyard.v1.agent_pb2"),
        status=importlib.import_module("google.rpc.status_pb2"),
        error_details=importlib.import_module("google.rpc.error_details_pb2"),
    )
