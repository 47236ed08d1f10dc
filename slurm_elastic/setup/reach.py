"""Finds the clouds that this host can reach, and checks answers against the host's names and
groups.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base import trust
from slurm_elastic.base.account import account, acting_as, is_group, trusted
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.one_line import one_line
from slurm_elastic.config.cloud_kinds import CloudTable
from slurm_elastic.config.found import Found, SearchPlace, unusable
from slurm_elastic.config.site_place import why_no_address
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.questions import Answers


def look(
    kinds: CloudTable, place: SearchPlace, user: str, only: str | None = None
) -> tuple[Found, ...]:
    """Return the clouds of all kinds, on-premises clouds first, each with a unique name. ``only``:
    the only kind to look for.

    A kind whose search fails becomes an unusable cloud. A cloud with credentials that ``user``
    (SlurmUser) may not read becomes unusable, too, because the services run as that user.
    """
    with contextlib.suppress(KeyError):
        trust.trust_slurm_user(account(user).pw_uid)
    with _without_warnings():
        clouds = [
            _check_access(cloud, user)
            for name in ([only] if only else kinds.names())
            for cloud in _of_kind(kinds, name, place)
        ]
    clouds.sort(key=lambda cloud: (cloud.location is Location.PUBLIC, not cloud.usable))
    return tuple(_named_once(clouds))


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Log no warnings. The clouds' libraries would log them before the table of clouds, which
    reports the same errors with what to do.
    """
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def not_found(kinds: CloudTable, clouds: Iterable[Found]) -> list[str]:
    """Return the kinds of clouds that were not found, including kinds of other packages. Only an
    administrator can configure them.
    """
    providers_found = {cloud.provider for cloud in clouds}
    return [name for name in kinds.names() if name not in {*providers_found, "fake"}]


def _of_kind(kinds: CloudTable, name: str, place: SearchPlace) -> Iterator[Found]:
    try:
        finder = kinds.kind(name).found
        yield from finder(place) if finder is not None else ()
    except ModuleNotFoundError as error:
        yield _unusable_kind(name, missing_module(error, name))
    except ConfigError as error:
        yield _unusable_kind(name, str(error))
    except Exception as error:  # noqa: BLE001 - another cloud's look must go on
        yield _unusable_kind(name, one_line(f"{type(error).__name__}: {error}", 160))


def _check_access(cloud: Found, user: str) -> Found:
    if os.geteuid() not in trusted(user):
        return cloud  # only root and ``user`` itself can find out what ``user`` may read
    for path, advice in cloud.reads.items():
        with acting_as(user):
            is_usable = _may_use(path)
        if not is_usable:
            instruction = advice.format(user=user, path=path)
            return unusable(cloud, f"SlurmUser {user} may not use {path}: {instruction}")
    return cloud


def _may_use(path: str) -> bool:
    with contextlib.suppress(OSError):
        mode = os.W_OK if Path(path).is_socket() else os.R_OK
        return os.access(path, mode, effective_ids=True)
    return False


def _unusable_kind(name: str, reason: str) -> Found:
    return Found(
        name=name, provider=name, location=Location.ON_PREMISES, what=f"provider {name}",
        usable=False, enable=reason,
    )  # fmt: skip


def _named_once(clouds: Iterable[Found]) -> Iterator[Found]:
    names_used: set[str] = set()
    for cloud in clouds:
        name, number = cloud.name, 2
        while name in names_used:
            name, number = f"{cloud.name}{number}", number + 1
        names_used.add(name)
        yield replace(cloud, name=name)


def doubt(before: Answers, answers: Answers) -> str:
    """Return a sentence about a part of an answer that this host does not know, "" if it knows all.

    The answer may be right nevertheless: the machines may resolve other names.
    """
    host = answers.head.partition(":")[0]
    if answers.head != before.head and host and not _resolves(host):
        return f"this host cannot resolve {host}"
    if answers.head != before.head and (flaw := head_flaw(host)):
        return flaw
    unknown = [name for name in answers.groups if name not in before.groups and not is_group(name)]
    return f"this host has no group {', '.join(unknown)}" if unknown else ""


def head_flaw(host: str) -> str:
    """Return why machines cannot reach the address that a name has on this host, "" if no reason is
    known. Debian gives a host's own name the address 127.0.1.1.
    """
    try:
        entries = socket.getaddrinfo(host, None, socket.AF_INET) if host else []
    except (OSError, UnicodeError):
        return ""
    for entry in entries:
        address = str(entry[4][0])
        if address != host and (reason := why_no_address(address)):
            return f"{host} is {address} on this host, and {reason}"
    return ""


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False
