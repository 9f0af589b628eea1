"""Checks includes against the link tiers of CMakeLists.txt files (cmake/Targets.cmake checks the libraries).

A file of the core tier must not see torch, gRPC or a header of another tier, not even through other headers. A file of
the control tier must not see torch. A file of the engine tier must not see gRPC or protobuf, because the torch wheel
contains the headers of an older protobuf. A file of the meeting tier may see headers of all tiers, but no file may see
both torch and protobuf.
"""

import functools
import re

TARGET = re.compile(r"trainyard_(?:library|binary|test)\(\s*\S+\s+TIER\s+(\w+)(?:\s+PRECOMPILED\s+\w+)?\s+"
                    r"SOURCES\s+([^)]*)")
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)
MAY_SEE = {"core": {"core"}, "control": {"core", "control"}, "engine": {"core", "engine"},
           "meeting": {"core", "control", "engine", "meeting"}}
MAY_NOT_INCLUDE = {
    "core": re.compile(r"^(torch|ATen|c10|grpcpp|grpc)/|\.grpc\.pb\.h$"),
    "control": re.compile(r"^(torch|ATen|c10)/"),
    "engine": re.compile(r"^(grpcpp|grpc|google/protobuf)/|\.pb\.h$"),
}
TORCH = re.compile(r"^(torch|ATen|c10)/")
PROTO = re.compile(r"^(grpcpp|google/protobuf)/|\.pb\.h$")


def tiers_of_sources(root):
    """The tier of each source file that a CMakeLists.txt names."""
    tiers = {}
    for lists in root.glob("*/**/CMakeLists.txt"):
        folder = lists.parent.relative_to(root)
        if folder.parts[0] in ("build", ".deps", "cmake"):
            continue
        for tier, rest in TARGET.findall(lists.read_text()):
            for word in re.split(r"\bLIBS\b", rest)[0].split():
                path = (root / folder / word).resolve()
                if path.suffix == ".cc" and path.is_file():
                    tiers.setdefault(str(path.relative_to(root)), tier)
    return tiers


def check(root):
    tiers = tiers_of_sources(root)

    @functools.cache
    def includes(name):
        path = root / name
        return INCLUDE.findall(path.read_text(errors="replace")) if path.is_file() else []

    def closure(name):
        """Returns every file that a source file sees, also through other headers, each with a file that includes it."""
        seen, waiting = {}, [(name, name)]
        while waiting:
            at, by = waiting.pop()
            if at in seen:
                continue
            seen[at] = by
            if at == name or (root / at).is_file():
                waiting += [(header, at) for header in includes(at)]
        return seen

    findings = set()
    for source, tier in sorted(tiers.items()):
        seen = closure(source)
        for header, by in seen.items():
            other = tiers.get(header.removesuffix(".h") + ".cc", tier) if header.endswith(".h") else tier
            banned = MAY_NOT_INCLUDE.get(tier)
            if other not in MAY_SEE[tier] or (banned and banned.search(header)):
                findings.add(f"{by}:1: includes {header}, which the {tier} tier ({source}) must not see")
        if any(map(TORCH.search, seen)) and any(map(PROTO.search, seen)):
            findings.add(f"{source}:1: sees both torch and protobuf; separate them by a plain header")
    return sorted(findings)
