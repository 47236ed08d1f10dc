"""The clouds that this host can reach, by each kind's own way of looking; heads and groups."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base import trust
from slurm_elastic.base.account import account, acting_as, is_group, trusted
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.config.cloud_kinds import CloudTable
from slurm_elastic.config.found import Found, SearchPlace, unusable
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.questions import Answers


def look(kinds: CloudTable, place: SearchPlace, user: str) -> tuple[Found, ...]:
    """All kinds, whatever one of them raises; names once, on-premises first. What SlurmUser may not
    read is of no use to the services.
    """
    with contextlib.suppress(KeyError):
        trust.also(account(user).pw_uid)
    found = [
        _for_services(one, user) for name in kinds.names() for one in _of_kind(kinds, name, place)
    ]
    found.sort(key=lambda one: (one.location is Location.PUBLIC, not one.usable))
    return tuple(_named_once(found))


def not_found(kinds: CloudTable, found: Iterable[Found]) -> list[str]:
    """Kinds of clouds, others' packages' ones too, that only an administrator can tell of."""
    seen = {one.provider for one in found}
    return [name for name in kinds.names() if name not in {*seen, "fake"}]


def _of_kind(kinds: CloudTable, name: str, place: SearchPlace) -> Iterator[Found]:
    try:
        finder = kinds.kind(name).found
        yield from finder(place) if finder is not None else ()
    except ModuleNotFoundError as error:
        yield _none(name, missing_module(error, name))
    except ConfigError as error:
        yield _none(name, str(error))
    except Exception as error:  # noqa: BLE001 - another cloud's look must go on
        yield _none(name, f"{type(error).__name__}: {error}"[:160])


def _for_services(one: Found, user: str) -> Found:
    if os.geteuid() not in trusted(user):
        return one  # nobody can tell
    for path, mend in one.reads.items():
        with acting_as(user):
            may = _may_use(path)
        if not may:
            todo = mend.format(user=user, path=path)
            return unusable(one, f"SlurmUser {user} may not use {path}: {todo}")
    return one


def _may_use(path: str) -> bool:
    with contextlib.suppress(OSError):
        mode = os.W_OK if Path(path).is_socket() else os.R_OK
        return os.access(path, mode, effective_ids=True)
    return False


def _none(name: str, why: str) -> Found:
    return Found(
        name=name, provider=name, location=Location.ON_PREMISES, what=f"provider {name}",
        usable=False, enable=why,
    )  # fmt: skip


def _named_once(found: Iterable[Found]) -> Iterator[Found]:
    seen: set[str] = set()
    for one in found:
        name, n = one.name, 2
        while name in seen:
            name, n = f"{one.name}{n}", n + 1
        seen.add(name)
        yield replace(one, name=name)


def doubt(before: Answers, given: Answers) -> str:
    """What this host does not know of an answer; empty where it knows all."""
    host = given.head.partition(":")[0]
    if given.head != before.head and host and not _resolves(host):
        return f"this host cannot resolve {host}"
    unknown = [name for name in given.groups if name not in before.groups and not is_group(name)]
    return f"this host has no group {', '.join(unknown)}" if unknown else ""


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False
