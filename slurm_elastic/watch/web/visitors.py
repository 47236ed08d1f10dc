"""The user who visits the page, named by the kernel or by the web server that the site trusts."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Callable, Sequence
from typing import Protocol

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.config.sections.access import PageProxy
from slurm_elastic.watch.door.orders import name_of
from slurm_elastic.watch.door.rights import Person, person_of

MAX_NAME_LENGTH = 64


class UnknownVisitorError(SlurmElasticError):
    """The visitor is no known user, so the page is read-only for them."""


class Visitors(Protocol):
    """Finds the person behind a request."""

    def person(self, peer: Peer | None, names: Sequence[str]) -> Person:
        """The person behind the request. ``peer``: the other end (None: a TCP port). ``names``: the
        values of ``header``.
        """

    @property
    def header(self) -> str:
        """The header in which a web server names the person; "" for none."""


class SocketVisitors:
    """Visitors of the page's unix socket.

    ``proxy`` and ``trusted`` are called for each request, because a site may stop trusting its web
    server while the page runs. ``trusted``: no header names these uids, because people choose their
    own names at some login services.
    """

    def __init__(
        self, proxy: Callable[[], PageProxy | None], trusted: Callable[[], frozenset[int]]
    ) -> None:
        self._proxy, self._trusted = proxy, trusted

    @property
    def header(self) -> str:
        """The header in which the web server names the person now; "" for none."""
        proxy = self._proxy()
        return proxy.header if proxy else ""

    def person(self, peer: Peer | None, names: Sequence[str]) -> Person:
        """The person behind the request. UnknownVisitorError if neither the kernel nor the web
        server names a user.
        """
        if peer is None:
            raise UnknownVisitorError(
                "this page was opened at a port, where the kernel does not say who visits it: open "
                "it by its unix socket to act"
            )
        proxy = self._proxy()
        if proxy is None or peer.uid != _uid_of(proxy.user):
            # Every user of the socket can send the header, so it counts only from the web server.
            return person_of(peer)
        if len(names) != 1:
            raise UnknownVisitorError(
                f"the web server must name the visitor in one header {proxy.header}, and sent "
                f"{len(names)} of them"
            )
        return self._named(names[0])

    def _named(self, name: str) -> Person:
        entry = _account(name)
        if entry is None:
            raise UnknownVisitorError(
                f"the web server names {name[:MAX_NAME_LENGTH]!r}, and this host has no such user"
            )
        if entry.pw_uid in self._trusted():
            raise UnknownVisitorError(
                f"the web server names {entry.pw_name}, who acts only by the page's unix socket"
            )
        groups = frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
        return Person(uid=entry.pw_uid, groups=groups, name=entry.pw_name)


class OwnVisitor:
    """The only visitor of a page whose web server starts a process for each user."""

    header = ""

    def __init__(self, own_person: Callable[[], Person]) -> None:
        self._own_person = own_person

    def person(self, _peer: Peer | None, _names: Sequence[str]) -> Person:
        """The user of this process."""
        return self._own_person()


def page_owner() -> str:
    """The user of this process."""
    return name_of(os.geteuid())


def _uid_of(user: str) -> int | None:
    entry = _account(user)
    return None if entry is None else entry.pw_uid


def _account(name: str) -> pwd.struct_passwd | None:
    if 0 < len(name) <= MAX_NAME_LENGTH:
        with contextlib.suppress(KeyError, ValueError):  # ValueError: a NUL
            return pwd.getpwnam(name)
    return None
