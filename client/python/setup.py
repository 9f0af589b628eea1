"""Compiles the schema in proto/ into schema.binpb, from which the package makes its message classes at run time.

The package contains no generated code, so it works with every protobuf runtime from 4.22 on, independent of the version
that built it.
"""

import pathlib

from setuptools import setup
from setuptools.command.build_py import build_py

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
# The files that these files import are included too.
FILES = ["trainyard/v1/service.proto", "trainyard/v1/trainer.proto", "google/rpc/status.proto",
         "google/rpc/error_details.proto"]


class BuildWithSchema(build_py):
    def run(self):
        super().run()
        import grpc_tools
        from grpc_tools import protoc

        missing = [name for name in FILES if not (PROTO / name).is_file()]
        if missing:
            raise SystemExit(f"the schema {PROTO / missing[0]} does not exist: install from a checkout, with "
                             "`pip install ./client/python`")
        target = pathlib.Path(self.build_lib) / "trainyard" / "schema.binpb"
        target.parent.mkdir(parents=True, exist_ok=True)
        well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
        code = protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", "--include_imports",
                            f"--descriptor_set_out={target}", *FILES])
        if code != 0:
            raise SystemExit(f"protoc refused the schema in {PROTO}; its messages are above")


setup(cmdclass={"build_py": BuildWithSchema})
