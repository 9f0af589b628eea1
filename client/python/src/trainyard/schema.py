"""The messages of the API, made from the schema at run time: `schema.JobSpec(name="small")`, `schema.Event`.

A job can also be written as a dictionary, with the keys and names of job files: `schema.job_spec({...})`.
"""

import copyreg
import difflib
import numbers
import os
import pathlib

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from trainyard import errors

PACKAGE = "trainyard.v1"
STATES = ("UNSPECIFIED", "QUEUED", "PLACED", "STARTING", "RUNNING", "RECOVERING", "STOPPING", "SUCCEEDED", "FAILED",
          "CANCELLED", "PAUSED")
FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")


def _load():
    path = pathlib.Path(__file__).with_name("schema.binpb")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ImportError(f"{path} does not exist: install the package with `pip install ./client/python`") from None
    # A pool of its own, because the same files may be in the default pool, compiled by another version of protoc.
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    # The rules of fields are extensions, which only messages of this pool can read.
    files = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FileDescriptorSet"))
    return pool, files.FromString(data)


_POOL, _FILES = _load()
SERVICE = _POOL.FindServiceByName(f"{PACKAGE}.JobService")


def __getattr__(name):
    try:
        made = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    except KeyError:
        raise AttributeError(f"the schema has no message {name}") from None
    globals()[name] = made
    return made


def rpc_message(name):
    """The class of a message of google.rpc, which the details of errors consist of."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"google.rpc.{name}"))


def message_of(descriptor):
    return message_factory.GetMessageClass(descriptor)


def _unpickled(name, serialized):
    return message_of(_POOL.FindMessageTypeByName(name)).FromString(serialized)


def _pickled(message):
    return _unpickled, (message.DESCRIPTOR.full_name, message.SerializeToString())


def _make_picklable():
    """Lets messages pass to other processes. By itself, pickle would look for their classes in a module, but classes
    that are made at run time have none."""
    def visit(prefix, messages):
        for message in messages:
            name = f"{prefix}.{message.name}"
            copyreg.pickle(message_of(_POOL.FindMessageTypeByName(name)), _pickled)
            visit(name, message.nested_type)

    for file in _FILES.file:
        if file.package == PACKAGE:
            visit(PACKAGE, file.message_type)


_make_picklable()


def state_name(number):
    """"RUNNING" for JOB_STATE_RUNNING; a state of a newer coordinator is "STATE_N"."""
    return STATES[number] if number < len(STATES) else f"STATE_{number}"


def _read_rules():
    rule = _POOL.FindExtensionByName(f"{PACKAGE}.rule")
    word = _POOL.FindExtensionByName(f"{PACKAGE}.word")
    rules, words = {}, {}

    def visit(prefix, messages, enums):
        for enum in enums:
            for value in enum.value:
                words[f"{prefix}.{enum.name}", value.name] = value.options.Extensions[word].yaml
        for message in messages:
            name = f"{prefix}.{message.name}"
            for field in message.field:
                rules[f"{name}.{field.name}"] = field.options.Extensions[rule]
            visit(name, message.nested_type, message.enum_type)

    for file in _FILES.file:
        if file.package == PACKAGE:
            visit(PACKAGE, file.message_type, file.enum_type)
    return rules, words


_RULES, _WORDS = _read_rules()


def _enum_words(enum):
    prefix = "".join(f"_{c}" if c.isupper() else c for c in enum.name).lstrip("_").upper() + "_"
    return {_WORDS[enum.full_name, value.name] or value.name[len(prefix):].lower(): value.number
            for value in enum.values if value.number != 0}


def _is_utf8(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Reader:
    """Collects all problems of one dictionary."""

    def __init__(self):
        self.problems = []

    def read(self, values, message, path):
        if not isinstance(values, dict):
            return self.problem(path, f"expected a dictionary, found {type(values).__name__}")
        keys = {_RULES[field.full_name].key or field.name: field for field in message.DESCRIPTOR.fields}
        for key, value in values.items():
            where = f"{path}.{key}" if path else str(key)
            if key in keys:
                self.read_field(keys[key], value, message, where)
                continue
            near = difflib.get_close_matches(str(key), keys, 1)
            self.problem(where, "is not a key" + (f"; did you mean '{near[0]}'?" if near else ""))

    def read_field(self, field, value, message, where):
        rule = _RULES[field.full_name]
        if value is None or (rule.auto and value == "auto"):
            return
        if field.message_type is not None:
            if rule.shorthand_key and not isinstance(value, dict):
                value = {rule.shorthand_key: value}
            nested = getattr(message, field.name)
            nested.SetInParent()
            return self.read(value, nested, where)
        is_list = isinstance(value, (list, tuple))
        if field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
            if not is_list:
                return self.problem(where, f"expected a list, found {value!r}")
            getattr(message, field.name).extend(
                item for item in (self.scalar(field, one, rule, where) for one in value) if item is not None)
            return
        read = self.problem(where, "expected one value, found a list") if is_list else self.scalar(field, value, rule,
                                                                                                  where)
        if read is not None:
            setattr(message, field.name, read)

    def scalar(self, field, value, rule, where):
        if field.enum_type is not None:
            words = _enum_words(field.enum_type)
            return words[value] if isinstance(value, str) and value in words else self.problem(
                where, f"expected one of {', '.join(words)}; found {value!r}")
        if isinstance(value, bool) and (rule.HasField("true_value") or rule.HasField("false_value")):
            value = rule.true_value if value else rule.false_value
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, numbers.Real) and not isinstance(value, (bool, int, float)):  # a number of numpy
            value = int(value) if isinstance(value, numbers.Integral) else float(value)
        if isinstance(value, str) and not _is_utf8(value):
            return self.problem(where, f"is not valid Unicode: found {value!r}")
        if rule.path and isinstance(value, str):
            value = os.path.abspath(value)
        expected = {field.CPPTYPE_STRING: str, field.CPPTYPE_BOOL: bool}.get(field.cpp_type, (int, float))
        if not isinstance(value, expected) or (expected is not bool and isinstance(value, bool)):
            return self.problem(where, f"has the wrong type: found {value!r}")
        is_real = field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT)
        if isinstance(value, float) and not is_real:
            if not value.is_integer():
                return self.problem(where, f"expected a whole number, found {value!r}")
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and not is_real:
            bits = 64 if field.cpp_type in (field.CPPTYPE_UINT64, field.CPPTYPE_INT64) else 32
            if not 0 <= value < 1 << bits:
                return self.problem(where, f"is out of range: found {value!r}")
        if isinstance(value, int) and is_real and abs(value) > 1 << 1000:
            return self.problem(where, "is out of range")
        return value

    def problem(self, where, text):
        self.problems.append(f"{where}: {text}")


def job_spec(values):
    """The JobSpec of a dictionary with the keys of a job file. Raises InvalidArgumentError with all problems. Ranges
    and missing keys are checked by the coordinator."""
    spec = __getattr__("JobSpec")()
    reader = _Reader()
    reader.read(values, spec, "")
    if reader.problems:
        raise errors.InvalidArgumentError(errors.plain("; ".join(reader.problems)))
    return spec
