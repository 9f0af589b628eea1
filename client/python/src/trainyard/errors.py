"""Errors of calls. The message is the coordinator's own sentence, which says what to do next."""

import re


class TrainyardError(Exception):
    """`code` is the name of the gRPC status code: "NOT_FOUND". The rest is what the coordinator added for programs:

    reason         a fixed identifier, "JOB_NOT_FOUND" (docs/services.md lists them), or ""
    metadata       what is known of job_id, state, generation and resource_version, as texts
    violations     {field: problem} of an invalid request
    resource       (kind, name) of what was not found, or None
    retry_after_s  the same call, unchanged, can succeed after this time; None: the coordinator named no time
    job_id         of a Submit that was not answered: the id of the job, which may have been submitted; or ""
    served_s       of a stream: for how long the coordinator had served it when it failed
    """

    code = "UNKNOWN"

    def __init__(self, message, code=None):
        super().__init__(message)
        self.code = code or type(self).code
        self.reason = ""
        self.metadata = {}
        self.violations = {}
        self.resource = None
        self.retry_after_s = None
        self.job_id = ""
        self.served_s = 0.0


def _make(code, meaning):
    name = "".join(part.capitalize() for part in code.split("_")) + "Error"
    return type(name, (TrainyardError,), {"code": code, "__doc__": meaning, "__module__": __name__})


InvalidArgumentError = _make("INVALID_ARGUMENT", "The request or the job is invalid; the message lists all problems.")
NotFoundError = _make("NOT_FOUND", "There is no such job, host or file.")
AlreadyExistsError = _make("ALREADY_EXISTS", "The id belongs to another job.")
FailedPreconditionError = _make("FAILED_PRECONDITION", "The state must change first; the message says how.")
OutOfRangeError = _make("OUT_OF_RANGE", "The coordinator does not know this position, or not all events after it.")
AbortedError = _make("ABORTED", "The job or host has changed since it was read; nothing was done.")
PermissionDeniedError = _make("PERMISSION_DENIED", "This caller has no access, or another user listens at the address.")
UnauthenticatedError = _make("UNAUTHENTICATED", "The token is missing or wrong.")
ResourceExhaustedError = _make("RESOURCE_EXHAUSTED", "A limit is reached; wait.")
UnavailableError = _make("UNAVAILABLE", "No coordinator answers; the call can be repeated.")
DeadlineExceededError = _make("DEADLINE_EXCEEDED", "The coordinator did not answer in time.")
UnimplementedError = _make("UNIMPLEMENTED", "The server does not support this call.")
CancelledError = _make("CANCELLED", "The call was cancelled.")

_BY_CODE = {kind.code: kind for kind in list(globals().values())
            if isinstance(kind, type) and issubclass(kind, TrainyardError)}

# Controls, and characters that separate lines or change the order in which text is displayed.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_UNSAFE_IN_TEXT = re.compile(r"(?![\n\t])" + _UNSAFE.pattern)


def _escape(match):
    return f"\\x{ord(match[0]):02x}" if ord(match[0]) < 256 else f"\\u{ord(match[0]):04x}"


def plain(text):
    """The text without characters that could change a terminal: names and reasons come from other users. Keeps line
    breaks, which separate the problems in a message."""
    return _UNSAFE_IN_TEXT.sub(_escape, str(text))


def plain_line(text):
    """As plain, for one line: a name or the cell of a table."""
    return _UNSAFE.sub(_escape, str(text))


def from_rpc(error, address):
    """The error of a failed call."""
    code = error.code().name if error.code() is not None else "UNKNOWN"
    details = _Details(error)
    message = error.details() or code
    if code == "UNAVAILABLE" and (not details.reason or details.retry_after_s is not None):
        message = f"the coordinator at {address} does not answer: {message}"
    elif code == "DEADLINE_EXCEEDED":
        message = f"the coordinator at {address} did not answer in time"
    elif code == "UNIMPLEMENTED":
        message = (f"the server at {address} is not a Trainyard coordinator, or is an older version: it does not "
                   f"support this call ({message})")
    made = _BY_CODE.get(code, TrainyardError)(plain(message), code)
    vars(made).update(vars(details))
    return made


class _Details:
    """The google.rpc.Status in the trailing metadata of a failed call. What cannot be read is left out."""

    def __init__(self, error):
        self.reason, self.metadata, self.violations = "", {}, {}
        self.resource = self.retry_after_s = None
        for key, value in getattr(error, "trailing_metadata", tuple)() or ():
            if key == "grpc-status-details-bin":
                self._read(value)

    def _read(self, serialized):
        from google.protobuf.message import DecodeError

        from trainyard import schema  # which imports this module

        try:
            for detail in schema.rpc_message("Status").FromString(serialized).details:
                name = detail.type_url.rpartition(".")[2]
                if name in ("ErrorInfo", "BadRequest", "ResourceInfo", "RetryInfo"):
                    self._add(name, schema.rpc_message(name).FromString(detail.value))
        except DecodeError:
            return

    def _add(self, name, detail):
        if name == "ErrorInfo":
            self.reason, self.metadata = detail.reason, dict(detail.metadata)
        elif name == "BadRequest":
            self.violations = {one.field: plain(one.description) for one in detail.field_violations}
        elif name == "ResourceInfo":
            self.resource = (detail.resource_type, plain_line(detail.resource_name))
        else:
            self.retry_after_s = detail.retry_delay.seconds + detail.retry_delay.nanos / 1e9
