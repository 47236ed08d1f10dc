"""Reads root's configuration on a node, and tells whether a path can be trusted to be root's."""

from __future__ import annotations

import pwd
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = "/etc/slurm-elastic/ckpt-root.conf"
_MOST = 1 << 20


class Refused(Exception):  # noqa: N818 - an answer to the caller, not a failure of ours
    """The request is not carried out; the text says why."""


@dataclass(frozen=True)
class Amount:
    """Bytes, or a share (0 to 1) of a file system."""

    text: str
    size: int = 0
    share: float = 0.0

    def of(self, total: int) -> int:
        """In bytes, for a file system of ``total`` bytes."""
        return self.size or int(self.share * total)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Site:
    """``directory`` is shared by all nodes and the head. ``key`` authenticates manifests and is the
    same on all nodes. A stopped job waits ``hold`` seconds for its requeue and looks for requests
    every ``poll`` seconds. ``job_quota`` and ``user_quota`` bound what a job, and all jobs of a
    user, have there; saves leave ``keep_free`` of the file system. ``stage`` is a directory on a
    disk of the node's own (``node_disk.py``). ``tmp``: ``own``, or ``node`` if jobs are to have the
    node's temporary directories (``private_tmp.py``).
    """

    cluster: str
    directory: Path
    key: bytes
    reader: tuple[int, int]
    keep: int = 2
    hold: float = 600.0
    poll: float = 0.5
    job_quota: Amount = Amount("25%", share=0.25)
    user_quota: Amount = Amount("50%", share=0.5)
    keep_free: Amount = Amount("5%", share=0.05)
    criu: str = "/usr/sbin/criu"
    dmtcp: str = "/usr/bin"
    scontrol: str = "/usr/bin/scontrol"
    slurmstepd: str = "/usr/sbin/slurmstepd"
    sudo: str = "/usr/bin/sudo"
    slurm_conf: str = ""
    scratch: Path = Path("/run/slurm-elastic-ckpt")
    stage: Path | None = None
    tmp: str = "own"

    @property
    def jobs(self) -> Path:
        """The directory that has a directory for each job."""
        return self.directory / self.cluster


def read(path: str = CONFIG) -> Site:
    """The configuration: ``name = value`` lines; Refused where it, the key or the shared directory
    could have been written by anybody but root.
    """
    values = _values(_read_trusted(Path(path)).decode())
    key = _read_trusted(Path(values.pop("key", "/etc/slurm-elastic/ckpt.key")), private=True)
    if len(key) < 32:
        raise Refused("the key has fewer than 32 bytes")
    directory = Path(_needed(values, "directory", path))
    cluster = _needed(values, "cluster", path)
    if not cluster.replace("-", "").replace("_", "").isalnum():
        raise Refused(f"{path}: cluster {cluster!r} is not a name")
    trust(directory, directory=True)
    user = values.pop("slurm_user", "slurm")
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise Refused(f"{path}: this host has no user {user}") from error
    own = {
        name: reads(values.pop(name), f"{path}: {name}")
        for name, reads in _READ.items()
        if name in values
    }
    if own.get("tmp", "own") not in ("own", "node"):
        raise Refused(f"{path}: tmp is {own['tmp']!r}, expected own or node")
    if values:
        raise Refused(f"{path}: unknown key {min(values)!r}")
    reader = (entry.pw_uid, entry.pw_gid)
    return Site(cluster=cluster, directory=directory, key=key, reader=reader, **own)


def trust(path: Path, *, directory: bool = False, private: bool = False) -> None:
    """Refused unless only root can change what is at ``path``: it and all directories above are
    root's, no link, and not writable by others (except sticky directories such as /tmp). A
    ``private`` file must be readable by root alone.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise Refused(f"{path}: not an absolute path")
    for place in (*reversed(path.parents), path):
        try:
            seen = place.lstat()
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error
        mode = stat.S_IMODE(seen.st_mode)
        if stat.S_ISLNK(seen.st_mode):
            raise Refused(f"{place}: a link")
        if place == path and directory != stat.S_ISDIR(seen.st_mode):
            raise Refused(f"{path}: not a {'directory' if directory else 'file'}")
        if seen.st_uid != 0:
            raise Refused(f"{place} belongs to uid {seen.st_uid}, not to root; chown root {place}")
        if mode & 0o022 and not (stat.S_ISDIR(seen.st_mode) and mode & stat.S_ISVTX):
            why = f"may be written by others (mode {mode:04o})"
            raise Refused(f"{place} {why}; chmod go-w {place}")
    if private and mode & 0o077:
        why = f"may be read by others (mode {mode:04o})"
        raise Refused(f"{path} {why}; chmod 600 {path}")


def _read_trusted(path: Path, *, private: bool = False) -> bytes:
    trust(path, private=private)
    try:
        with path.open("rb") as file:
            content = file.read(_MOST + 1)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    if len(content) > _MOST:
        raise Refused(f"{path}: more than {_MOST} bytes long")
    return content


def _values(text: str) -> dict[str, str]:
    values = {}
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            values[name.strip()] = value.strip()
    return values


def _needed(values: dict[str, str], name: str, path: str) -> str:
    if not values.get(name):
        raise Refused(f"{path}: no {name!r}")
    return values.pop(name)


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise Refused(f"{name} is {text!r}, not a number") from error
    if not 0 < value < 1e9:
        raise Refused(f"{name} is {text}, not above 0 and below 1,000,000,000")
    return value


def _amount(text: str, name: str) -> Amount:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([KMGT])|(%))", text)
    if not found:
        raise Refused(f"{name} is {text!r}, expected an amount such as 200G, 2T or 25%")
    number, unit, percent = float(found[1]), found[2], found[3]
    if percent:
        if number > 100:
            raise Refused(f"{name} is {text}, expected at most 100%")
        return Amount(text, share=number / 100)
    return Amount(text, size=int(number * 1024 ** ("KMGT".index(unit) + 1)))


_READ: dict[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(("hold", "poll"), _number),
    "keep": lambda text, name: int(_number(text, name)),
    **dict.fromkeys(("job_quota", "user_quota", "keep_free"), _amount),
    **dict.fromkeys(("scratch", "stage"), lambda text, _: Path(text)),
    **dict.fromkeys(
        ("criu", "dmtcp", "scontrol", "slurmstepd", "sudo", "slurm_conf", "tmp"),
        lambda text, _: text,
    ),
}
