"""The page's socket: a unix socket or a loopback port only, because the page has no TLS."""

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
from slurm_elastic.base.processes.unixsocket import bind_socket, remove_socket

BACKLOG = 64
OWN, SHARED = 0o600, 0o660
NAME = "slurm-elastic-web.sock"


class ListenAddress(Struct, frozen=True, kw_only=True):
    """A ``path``, or ``host`` and ``port`` (0: any free one)."""

    path: Path | None = None
    host: str = ""
    port: int = 0


def place(text: str) -> ListenAddress:
    """Parse a path with a slash, or ``127.0.0.1:8411``. ValueError for non-loopback addresses."""
    if "/" in text:
        return ListenAddress(path=Path(text))
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or not host:
        raise ValueError(f"{text!r} is neither a path with a slash nor HOST:PORT")
    if host != "localhost" and not _is_loopback(host):
        raise ValueError(
            f"{text!r} is not an IPv4 loopback address: give a unix socket or 127.0.0.1, and "
            "forward to it with the site's web server or ssh -L"
        )
    return ListenAddress(host=host, port=int(port))


@contextlib.contextmanager
def own_place() -> Iterator[ListenAddress]:
    """A unix socket in a directory that only this user can enter."""
    runtime_directory = os.environ.get("XDG_RUNTIME_DIR", "")
    # After su(1) or `sudo -E` the directory is another user's, who could replace our socket.
    if (
        os.path.isabs(runtime_directory)
        and os.path.isdir(runtime_directory)
        and _is_own(runtime_directory)
    ):
        yield ListenAddress(path=Path(runtime_directory) / NAME)
        return
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-web-") as directory:
        yield ListenAddress(path=Path(directory) / NAME)


def _is_own(directory: str) -> bool:
    with contextlib.suppress(OSError):
        return trust.flaw(directory, {os.geteuid()}) is None
    return False


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.IPv4Address(host).is_loopback
    return False


@contextlib.contextmanager
def listening(address: ListenAddress, group: str = "") -> Iterator[socket.socket]:
    """Open a listening socket; members of ``group`` may use a unix socket.

    Raises SlurmElasticError if the group is unknown or the address cannot be used.
    """
    if address.path is None:
        with _tcp(address) as bound:
            yield bound
        return
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        number = None if not group else grp.getgrnam(group).gr_gid
        bind_socket(link, address.path, mode=OWN, backlog=BACKLOG)
        if number is not None:
            # chown before chmod: else members of our own group could connect in between.
            os.chown(address.path, -1, number)
            os.chmod(address.path, SHARED)
        inode = os.stat(address.path).st_ino
    except KeyError:
        link.close()
        raise SlurmElasticError(f"--group: this host has no group {group!r}") from None
    except OSError as error:
        link.close()
        error_text = error.strerror or error
        raise SlurmElasticError(f"cannot listen at {address.path}: {error_text}") from error
    try:
        yield link
    finally:
        remove_socket(address.path, inode)
        link.close()


def _tcp(address: ListenAddress) -> socket.socket:
    try:
        return socket.create_server((address.host, address.port), backlog=BACKLOG)
    except OSError as error:
        raise SlurmElasticError(
            f"cannot listen at {address.host}:{address.port}: {error.strerror}; "
            "--listen 127.0.0.1:0 takes a free port"
        ) from error
