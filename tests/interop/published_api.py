"""The published API as a table of lines, and what has changed in it since it was recorded.

    python tests/interop/published_api.py            prints what has changed
    python tests/interop/published_api.py --record   records the API as it is now (docs/checklists/rpc.md says when)

One line for each message, field, enum value and method of all our protos, with everything that other programs rely on:
number, type, label, JSON name, options (ranges and defaults of job files), and a hash of the words of its comment,
which defines its meaning. The reasons of errors have a line each, too.
"""

import hashlib
import pathlib
import re
import sys
import tempfile

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "golden" / "api" / "published.txt"
REASONS = ROOT / "common" / "error_details.h"
COMMAND = ".deps/python/bin/python tests/interop/published_api.py --record"

_FIELD = descriptor_pb2.FieldDescriptorProto


def compile_protos(folder):
    """The FileDescriptorSet of all protos below `folder`, with comments; options are read with their extensions."""
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.proto"))
    with tempfile.NamedTemporaryFile() as out:
        code = protoc.main(["protoc", f"-I{folder}", f"-I{well_known}", "--include_imports", "--include_source_info",
                            f"--descriptor_set_out={out.name}", *files])
        assert code == 0, f"protoc refused {files}"
        data = pathlib.Path(out.name).read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    files_of_pool = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("google.protobuf.FileDescriptorSet")) if _knows(pool) else \
        descriptor_pb2.FileDescriptorSet
    return [file for file in files_of_pool.FromString(data).file if not file.name.startswith("google/protobuf/")]


def _knows(pool):
    # The pool contains descriptor.proto only if one of the protos defines options.
    try:
        pool.FindMessageTypeByName("google.protobuf.FileDescriptorSet")
    except KeyError:
        return False
    return True


class Table:
    """`lines`: {"field trainyard.v1.Job.state": {"number": "3", ..., "meaning": "1a2b3c4d"}}.
    `reserved`: {"trainyard.v1.Job": (ranges of numbers, names)}."""

    def __init__(self, files, reasons=()):
        self.lines, self.reserved = {}, {}
        for file in files:
            comments = {tuple(one.path): one.leading_comments + " " + one.trailing_comments
                        for one in file.source_code_info.location}
            self._add_types(file.package, file.message_type, file.enum_type, (4,), (5,), comments)
            for at, service in enumerate(file.service):
                for index, method in enumerate(service.method):
                    name = f"{file.package}.{service.name}.{method.name}"
                    self.lines[f"method {name}"] = {
                        "request": method.input_type, "response": method.output_type,
                        "streams": f"{method.client_streaming:d}{method.server_streaming:d}",
                        "options": _options(method), "meaning": _meaning(comments, (6, at, 2, index))}
        for reason in reasons:
            self.lines[f"reason {reason}"] = {}

    def _add_types(self, scope, messages, enums, message_path, enum_path, comments):
        for at, enum in enumerate(enums):
            name = f"{scope}.{enum.name}"
            self.reserved[name] = ([(one.start, one.end + 1) for one in enum.reserved_range], set(enum.reserved_name))
            for index, value in enumerate(enum.value):
                self.lines[f"value {name}.{value.name}"] = {
                    "number": str(value.number), "options": _options(value),
                    "meaning": _meaning(comments, (*enum_path, at, 2, index))}
        for at, message in enumerate(messages):
            name, path = f"{scope}.{message.name}", (*message_path, at)
            self.reserved[name] = ([(one.start, one.end) for one in message.reserved_range], set(message.reserved_name))
            self.lines[f"message {name}"] = {"meaning": _meaning(comments, path)}
            for index, field in enumerate(message.field):
                self._add_field(name, message, field, _meaning(comments, (*path, 2, index)))
            self._add_types(name, message.nested_type, message.enum_type, (*path, 3), (*path, 4), comments)

    def _add_field(self, scope, message, field, meaning):
        one_of = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        label = _FIELD.Label.Name(field.label).removeprefix("LABEL_").lower()
        self.lines[f"field {scope}.{field.name}"] = {
            "number": str(field.number),
            "type": field.type_name or _FIELD.Type.Name(field.type).removeprefix("TYPE_").lower(),
            "label": "presence" if field.proto3_optional else label,
            "oneof": "" if field.proto3_optional else one_of,
            "json": field.json_name, "options": _options(field), "meaning": meaning}

    def format(self):
        return "".join(" ".join([name, *(f"{key}={value}" for key, value in facts.items() if value)]) + "\n"
                       for name, facts in sorted(self.lines.items()))


def _options(described):
    """The options in one line, without blanks, because blanks separate the facts."""
    text = text_format.MessageToString(described.options, as_one_line=True)
    return re.sub(r"\s+", "_", re.sub(r"\[[\w.]*\.(\w+)\]", r"\1", text)).strip("_")


def _meaning(comments, path):
    words = re.findall(r"\w+", comments.get(path, "").lower())
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8] if words else ""


def parse(text):
    """{name: facts} of a recorded table."""
    lines = {}
    for line in text.splitlines():
        kind, name, *facts = line.split(" ")
        lines[f"{kind} {name}"] = dict(fact.split("=", 1) for fact in facts)
    return lines


def problems(recorded, table):
    """What a program that uses the recorded API would misunderstand, one sentence each."""
    found = []
    for name, facts in recorded.items():
        if name not in table.lines:
            found.extend(_removed(name, facts, table))
            continue
        now = {key: value for key, value in table.lines[name].items() if value}
        changed = [f"{key} was {facts.get(key, 'not set')} and is {now.get(key, 'not set')}"
                   for key in sorted(facts.keys() | now.keys()) if key != "meaning" and facts.get(key) != now.get(key)]
        if changed:
            found.append(f"{name}: {', '.join(changed)}. Programs that know the old form misread it: leave it as it "
                         "was, and add a new one")
        elif facts.get("meaning") != now.get("meaning"):
            found.append(f"{name}: the words of its comment have changed. If it still means the same, record that with "
                         f"`{COMMAND}`; if it means something else, leave it as it was, and add a new one")
    return found


def _removed(name, facts, table):
    kind, _, path = name.partition(" ")
    scope, _, last = path.rpartition(".")
    if kind in ("field", "value") and scope in table.reserved:
        ranges, names = table.reserved[scope]
        number = int(facts["number"])
        if last in names and any(start <= number < end for start, end in ranges):
            return
        yield (f"{name} was removed: add `reserved {number};` and `reserved \"{last}\";` to {scope}, so that neither "
               "is used again")
    elif kind in ("field", "value") and f"message {scope}" not in table.lines:
        return  # the line of the message reports it
    else:
        yield f"{name} was removed: programs still use it; restore it (a method may answer UNIMPLEMENTED with a reason)"


def current():
    reasons = re.findall(r'k\w+\[\] = "([A-Z_]+)"', REASONS.read_text())
    assert len(reasons) > 10, f"{REASONS} has another form"
    return Table(compile_protos(ROOT / "proto"), reasons)


def main(arguments):
    table = current()
    if arguments == ["--record"]:
        RECORD.write_text(table.format())
        return
    sys.exit("\n".join(problems(parse(RECORD.read_text()), table)))


if __name__ == "__main__":
    main(sys.argv[1:])
