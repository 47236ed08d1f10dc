"""The page's socket: a unix socket or loopback, and nothing else, as it has no TLS of its own."""

from __future__ import annotations

import contextlib
import grp
import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base import trust
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.unixsocket import bind_socket, remove_socket

BACKLOG = 64
OWN, SHARED = 0o600, 0o660
NAME = "slurm-elastic-web.sock"


class ListenAddress(Struct, frozen=True, kw_only=True):
    """A ``path``, or ``host`` and ``port`` (0: any free one)."""

    path: Path | None = None
    host: str = ""
    port: int = 0


def place(text: str) -> ListenAddress:
    """A path with a slash, or ``127.0.0.1:8411``. ValueError for what is not of this host alone."""
    if "/" in text:
        return ListenAddress(path=Path(text))
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or not host:
        raise ValueError(f"{text!r} is neither a path with a slash nor HOST:PORT")
    if host != "localhost" and not _is_loopback(host):
        raise ValueError(
            f"{text!r} is not of this host alone: give a unix socket or 127.0.0.1, and let the "
            "site's web server or ssh -L lead there"
        )
    return ListenAddress(host=host, port=int(port))


@contextlib.contextmanager
def own_place() -> Iterator[ListenAddress]:
    """A unix socket in a directory that only this user can enter."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    # After su(1) or `sudo -E` it is another user's, who could put a socket in the place of ours.
    if os.path.isabs(own) and os.path.isdir(own) and _is_own(own):
        yield ListenAddress(path=Path(own) / NAME)
        return
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-web-") as made:
        yield ListenAddress(path=Path(made) / NAME)


def _is_own(directory: str) -> bool:
    with contextlib.suppress(OSError):
        return trust.flaw(directory, {os.geteuid()}) is None
    return False


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.IPv4Address(host).is_loopback
    return False


@contextlib.contextmanager
def listening(where: ListenAddress, group: str = "") -> Iterator[socket.socket]:
    """A socket that listens; members of ``group`` may use a unix one. SlurmElasticError if not."""
    if where.path is None:
        with _tcp(where) as bound:
            yield bound
        return
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        number = None if not group else grp.getgrnam(group).gr_gid
        bind_socket(link, where.path, mode=OWN, backlog=BACKLOG)
        if number is not None:
            # First: until then it would be open to the members of our own group.
            os.chown(where.path, -1, number)
            os.chmod(where.path, SHARED)
        inode = os.stat(where.path).st_ino
    except KeyError:
        link.close()
        raise SlurmElasticError(f"--group: this host has no group {group!r}") from None
    except OSError as error:
        link.close()
        why = error.strerror or error
        raise SlurmElasticError(f"cannot listen at {where.path}: {why}") from error
    try:
        yield link
    finally:
        remove_socket(where.path, inode)
        link.close()


def _tcp(where: ListenAddress) -> socket.socket:
    try:
        return socket.create_server((where.host, where.port), backlog=BACKLOG)
    except OSError as error:
        raise SlurmElasticError(
            f"cannot listen at {where.host}:{where.port}: {error.strerror}; --listen 127.0.0.1:0 "
            "takes a free port"
        ) from error
