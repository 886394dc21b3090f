"""Key pairs that let a known instrument send scans to a known receiver, and nobody else (CurveZMQ).

    keys/
      server.key               public and secret key of the receiver; for its owner alone (0600)
      instrument.key           public and secret key of the sender, and the receiver's public key (0600)
      clients/instrument.pub   public key of a sender that is let in

The files are ZPL, as ZeroMQ's own tools write certificates: `name = "value"` under `curve`, keys in Z85. Reference:
ZeroMQ RFC 26 (CurveZMQ), RFC 27 (ZAP).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import AT_ONCE, NEW_FILE, sync_folder

_LINE = re.compile(
    r'^\s*(public-key|secret-key|server-key)\s*=\s*"([0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40})"\s*$', re.M
)
_NAME = r"[A-Za-z0-9_-]{1,40}"
_MOST_BYTES = 4096
_MOST_CLIENTS = 1000


def zmq_module() -> Any:
    """pyzmq, or one line that says how to get it."""
    try:
        import zmq
    except ImportError:
        raise InputError("streaming needs pyzmq; install it with: pip install 'plugstream[live]'") from None
    return zmq


@dataclass(frozen=True)
class ServerKeys:
    """What a receiver needs: its own pair, and the public keys of its clients, each with a name."""

    public: str
    secret: str = field(repr=False)
    clients: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: str | Path) -> ServerKeys:
        """Read a folder that `make_keys` made; one without a client is refused."""
        folder = Path(folder)
        pair = _read(folder / "server.key", "public-key", "secret-key")
        paths = sorted((folder / "clients").glob("*.pub"))
        if not paths:
            raise InputError(
                f"{folder / 'clients'} has no .pub file, so nobody could send; add a client with "
                f"'plugstream keys {folder} --client NAME'"
            )
        if len(paths) > _MOST_CLIENTS:
            raise InputError(f"{folder / 'clients'} has {len(paths)} keys, and at most {_MOST_CLIENTS} are let in")
        clients = {_read(path, "public-key")["public-key"]: path.stem for path in paths}
        return cls(pair["public-key"], pair["secret-key"], clients)


@dataclass(frozen=True)
class ClientKeys:
    """What a sender needs: its own pair, and the public key of the receiver that it will talk to."""

    public: str
    secret: str = field(repr=False)
    server: str

    @classmethod
    def load(cls, path: str | Path) -> ClientKeys:
        """Read NAME.key of a folder that `make_keys` made."""
        keys = _read(Path(path), "public-key", "secret-key", "server-key")
        return cls(keys["public-key"], keys["secret-key"], keys["server-key"])


def make_keys(folder: str | Path, client: str = "instrument") -> list[Path]:
    """Make the keys of a receiver, unless the folder has them, and of a client; returns the files that were made.

    A file that exists is never written over: a client's name that is taken is refused, with nothing made. Secret keys
    can be read by their owner alone.
    """
    folder = Path(folder)
    if not re.fullmatch(_NAME, client) or client == "server":
        raise InputError(
            f"a client is named by 1 to 40 letters, digits, _ and -, and not 'server'; not {client[:60]!r}"
        )
    zmq = _curve()
    server, secret, allowed = folder / "server.key", folder / f"{client}.key", folder / "clients" / f"{client}.pub"
    for path in (secret, allowed):
        if path.is_symlink() or path.exists():
            raise InputError(f"{path} exists already, and keys are never written over; choose another --client")
    new = not (server.is_symlink() or server.exists())
    try:
        public = "" if new else _read(server, "public-key", "secret-key")["public-key"]
        folder.mkdir(mode=0o700, exist_ok=True)
        allowed.parent.mkdir(mode=0o755, exist_ok=True)
        if new:
            public, private = (part.decode() for part in zmq.curve_keypair())
            _write(server, "The secret key of a plugstream receiver: whoever has it can pose as it.", public, private)
        mine, private = (part.decode() for part in zmq.curve_keypair())
        _write(secret, "The secret key of a plugstream sender: whoever has it is let in.", mine, private, public)
        _write(allowed, "The public key of a plugstream sender that is let in; remove it to shut it out.", mine)
        sync_folder(folder)
        sync_folder(allowed.parent)
    except OSError as error:
        raise StorageError(f"cannot write keys to {folder}: {error.strerror or error}") from error
    return [server, secret, allowed] if new else [secret, allowed]


class Gate:
    """Answers ZeroMQ's question whether a connection is let in (ZAP): by its public key, and by nothing else."""

    def __init__(self, context: Any, keys: ServerKeys) -> None:
        self._zmq, self._keys = _curve(), keys
        self.socket = context.socket(self._zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answer all pending questions."""
        while self.socket.poll(0):
            version, number, _domain, _address, _identity, mechanism, *credentials = self.socket.recv_multipart()
            status = [b"400", b"unknown key", b""]
            if version == b"1.0" and mechanism == b"CURVE" and len(credentials) == 1 and len(credentials[0]) == 32:
                public = self._zmq.utils.z85.encode(credentials[0])
                if public.decode() in self._keys.clients:
                    status = [b"200", b"", public]  # what messages of this connection carry as "User-Id"
            self.socket.send_multipart([b"1.0", number, *status, b""], self._zmq.NOBLOCK)


def _curve() -> Any:
    zmq = zmq_module()
    import_module("zmq.utils.z85")
    if not zmq.has("curve"):
        raise InputError("this pyzmq was built without CURVE, so there are no keys; install it with: pip install pyzmq")
    return zmq


def _write(path: Path, comment: str, public: str, secret: str = "", server: str = "") -> None:
    mode = 0o600 if secret else 0o644
    keys = {"public-key": public, "secret-key": secret, "server-key": server}
    lines = [f"#   {comment}", "metadata", f'    name = "{path.stem}"', "curve"]
    lines += [f'    {name} = "{value}"' for name, value in keys.items() if value]
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NEW_FILE, mode)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        if hasattr(os, "fchmod"):
            os.fchmod(handle, mode)  # whatever the umask is
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(handle)


def _read(path: Path, *names: str) -> dict[str, str]:
    """The keys in a file; one that holds a secret and that others may read is refused."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | AT_ONCE), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path} is not a file of keys")
            if "secret-key" in names and os.name == "posix" and status.st_mode & 0o077:
                raise InputError(f"{path} holds a secret key that others may read; run: chmod 600 {path}")
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read the keys {path}: {error.strerror}; 'plugstream keys' makes them") from error
    keys = dict(_LINE.findall(text.decode("ascii", "replace"))) if len(text) <= _MOST_BYTES else {}
    if missing := [name for name in names if name not in keys]:
        raise InputError(f"{path} is not a file that 'plugstream keys' made for this: it has no {missing[0]}")
    if "secret-key" in names and _curve().curve_public(keys["secret-key"].encode()).decode() != keys["public-key"]:
        raise InputError(f"public and secret key of {path} do not belong together; make others with 'plugstream keys'")
    return keys
