"""Errors of calls. The message is the coordinator's own sentence, which says what to do next."""

import re


class TrainyardError(Exception):
    """`code` is the name of the gRPC status code: "NOT_FOUND"."""

    code = "UNKNOWN"

    def __init__(self, message, code=None):
        super().__init__(message)
        self.code = code or type(self).code


def _make(code, meaning):
    name = "".join(part.capitalize() for part in code.split("_")) + "Error"
    return type(name, (TrainyardError,), {"code": code, "__doc__": meaning, "__module__": __name__})


InvalidArgumentError = _make("INVALID_ARGUMENT", "The request or the job is invalid; the message lists all problems.")
NotFoundError = _make("NOT_FOUND", "There is no such job, host or file.")
AlreadyExistsError = _make("ALREADY_EXISTS", "The id belongs to another job.")
FailedPreconditionError = _make("FAILED_PRECONDITION", "The state must change first; the message says how.")
OutOfRangeError = _make("OUT_OF_RANGE", "The coordinator does not know this position.")
PermissionDeniedError = _make("PERMISSION_DENIED", "This caller has no access, or another user listens there.")
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
    message = error.details() or code
    if code == "UNAVAILABLE":
        message = f"the coordinator at {address} does not answer: {message}"
    elif code == "DEADLINE_EXCEEDED":
        message = f"the coordinator at {address} did not answer in time"
    elif code == "UNIMPLEMENTED":
        message = (f"the server at {address} is not a Trainyard coordinator, or is an older version: it does not "
                   f"support this call ({message})")
    return _BY_CODE.get(code, TrainyardError)(plain(message), code)
