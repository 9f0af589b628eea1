"""Where the coordinator is, who listens there, and the token for it, by the rules of trainctl (common/dial.h).

Any user of this machine may listen on a port while the coordinator is not running. Before a token is sent to an
address of this machine, the owner of the listening socket must therefore be this user, root, or the owner of the
token file that the caller named. gRPC for Python connects by itself, so the check precedes each call: a process that
takes the port or the path of a Unix socket between the check and the connection is not noticed.
"""

import ipaddress
import os
import pathlib
import pwd
import re
import socket
import stat
import struct
import sys

from trainyard import errors

DEFAULT_VARIABLE = "TRAINYARD_COORDINATOR"
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]{16,1024}")
_LISTENING = "0A"


def grpc_target(address):
    """The address for a channel of gRPC, which reads that of a Unix socket as a URI."""
    is_uri = address.startswith("unix:")
    return address.translate({ord("%"): "%25", ord("?"): "%3F", ord("#"): "%23"}) if is_uri else address


class Target:
    """An address of a coordinator with the rules for its token."""

    def __init__(self, address=None, token_file=None, allow_plaintext=False):
        address = address or os.environ.get(DEFAULT_VARIABLE, "")
        if not address:
            raise errors.InvalidArgumentError(
                f"no coordinator is configured: give host:port (or unix:PATH), or set {DEFAULT_VARIABLE}")
        self.address = address
        self.token_file = token_file
        self.unix_path = address[len("unix:"):] if address.startswith("unix:") else ""
        self.host, self.port = ("", 0) if self.unix_path else _split(address)
        self.is_local = bool(self.unix_path) or _is_loopback(self.host)
        if not self.is_local and not allow_plaintext:
            raise errors.FailedPreconditionError(
                f"the coordinator at {address} is not on this machine, and this version does not encrypt connections: "
                "anyone on the network path could read them and run jobs. Give allow_plaintext=True if you trust the "
                "network, or use a tunnel to a loopback address")

    def token(self):
        """Returns the token, or None. Checks who listens before it returns a token for an address of this machine."""
        owner, token = None, None
        if self.token_file:
            token, owner = _read(pathlib.Path(self.token_file), own=False)
        if not self.is_local or (self.unix_path and token is None):
            return token
        if self.unix_path:
            user = _owner_of_socket(self.unix_path)
            if user is None:
                return None
            self._check({user}, owner)
            return token
        addresses = [info[4][:2] for info in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)]
        if token is None:
            token = next(filter(None, (_own_token(host, port) for host, port in addresses)), None)
        if token is not None:
            users = _users_at(addresses)
            if not users and owner is None and self._accepts():
                users = _users_at(addresses)  # the coordinator may have been started since the first look
            self._check(users, owner)
        return token

    def _check(self, users, owner):
        # 65534 stands for every user without a number in this user namespace, so it proves nothing about the owner.
        for user in users - {os.geteuid(), 0} - ({owner} if owner not in (None, 65534) else set()):
            raise errors.PermissionDeniedError(
                f"a program of user {user} listens at {self.address}, but this program runs as {os.geteuid()}, so "
                "nothing was sent there. If that is the coordinator, name a token file of that user (token_file)")
        if not users and owner is None and self._accepts():
            raise errors.PermissionDeniedError(
                f"the kernel does not report which user listens at {self.address}, so nothing was sent there. If the "
                "coordinator listens there, name the file with its token (token_file)")

    def _accepts(self):
        try:
            socket.create_connection((self.host, self.port), timeout=0.1).close()
        except OSError:
            return False
        return True


def _users_at(addresses):
    return set().union(*(listening_users(host, port) for host, port in addresses))


def _owner_of_socket(path):
    """The user whose program listens at this Unix socket, as the kernel recorded it; None: no program does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1)
        try:
            connection.connect(path)
        except OSError:
            return None
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return user


def _split(address):
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
        raise errors.InvalidArgumentError(f"'{errors.plain_line(address)}' is not the address of a coordinator: "
                                          "expected host:port, for example 127.0.0.1:7070, or unix:PATH")
    return host, int(port)


def _is_loopback(host):
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_folder():
    """The folder with the tokens of this user's coordinators; None: the user has no home, as in a container that runs
    under the number of a user without an account."""
    for variable, rest in (("XDG_STATE_HOME", ""), ("HOME", ".local/state")):
        value = os.environ.get(variable, "")
        if value.startswith("/") and (not rest or os.path.isdir(value)) and not _is_of_another(value):
            return pathlib.Path(value, rest, "trainyard", "tokens")
    try:
        home = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None
    return pathlib.Path(home, ".local/state/trainyard/tokens")


def _is_of_another(folder):
    try:
        return os.stat(folder).st_uid != os.geteuid()
    except OSError:
        return False


def _own_token(host, port):
    folder = token_folder()
    if folder is None:
        return None
    network = os.stat("/proc/self/ns/net").st_ino
    name = f"{os.uname().nodename}-{network}-{host.replace(':', '-')}-{port}".replace("/", "_")
    try:
        return _read(folder / name, own=True)[0]
    except errors.NotFoundError:
        return None


def _read(path, own):
    """Returns the token and the owner of the file.

    With own, the file is one in our token folder: it may not be a symbolic link, belong to another user (except root),
    or give others access.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if own else 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise errors.NotFoundError(f"token file {path} does not exist") from None
    except OSError as error:
        raise errors.InvalidArgumentError(f"cannot open token file {path}: {error.strerror}") from None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise errors.InvalidArgumentError(f"token file {path} is not a regular file")
        forbidden = 0o077 if own else 0o007
        if info.st_mode & forbidden or (own and info.st_uid not in (os.geteuid(), 0)):
            raise errors.InvalidArgumentError(f"other users have access to token file {path}; set its mode to 0600")
        text = os.read(descriptor, 1026).strip()
    finally:
        os.close(descriptor)
    if not _TOKEN.fullmatch(text):
        raise errors.InvalidArgumentError(f"token file {path} does not contain a token: expected 16 to 1024 letters, "
                                          "digits and -._~+/= on one line")
    return text.decode(), info.st_uid


def _bytes_of(hexadecimal):
    words = [int(hexadecimal[i:i + 8], 16) for i in range(0, len(hexadecimal), 8)]
    raw = b"".join(struct.pack("<I" if sys.byteorder == "little" else ">I", word) for word in words)
    return raw if len(raw) == 16 else bytes(10) + b"\xff\xff" + raw


def _listeners(table, wanted, port, is_ipv4):
    """The users that listen at this address, and those that listen at all addresses."""
    exact, any_address = set(), set()
    try:
        lines = pathlib.Path(table).read_text().splitlines()[1:]
    except OSError:
        return exact, any_address
    for line in lines:
        fields = line.split()
        if len(fields) < 8 or fields[3] != _LISTENING:
            break  # listening sockets come first
        address, _, listens_at = fields[1].partition(":")
        if int(listens_at, 16) != port:
            continue
        found = _bytes_of(address)
        if found == wanted:
            exact.add(int(fields[7]))
        elif found in (bytes(16), bytes(10) + b"\xff\xff" + bytes(4)) and (is_ipv4 or len(address) == 32):
            any_address.add(int(fields[7]))
    return exact, any_address


def listening_users(host, port):
    """The users whose sockets may accept a connection to this numeric address of this machine. Linux only."""
    address = ipaddress.ip_address(host)
    is_ipv4 = address.version == 4
    wanted = bytes(10) + b"\xff\xff" + address.packed if is_ipv4 else address.packed
    exact, any_address = _listeners("/proc/net/tcp", wanted, port, True) if is_ipv4 else (set(), set())
    if not exact:
        exact_6, any_6 = _listeners("/proc/net/tcp6", wanted, port, is_ipv4)
        exact, any_address = exact | exact_6, any_address | any_6
    return exact or any_address
