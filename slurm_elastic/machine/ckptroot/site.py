"""Root's own configuration on a node, and whether a path can be trusted to be root's."""

from __future__ import annotations

import pwd
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.base.trust import flaw

CONFIG = "/etc/slurm-elastic/ckpt-root.conf"
ROOT = (0,)
_MOST = 1 << 20


class Refused(Exception):  # noqa: N818 - an answer to the caller, not a failure of ours
    """The request is not carried out; the text says why."""


@dataclass(frozen=True)
class Amount:
    """Bytes, or a share (0 to 1) of the file system's."""

    text: str
    size: int = 0
    share: float = 0.0

    def of(self, total: int) -> int:
        """In bytes, of a file system with that many."""
        return self.size or int(self.share * total)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Site:
    """``directory`` is shared by all nodes and the head. ``key`` authenticates manifests and is the
    same on all nodes. ``hold`` (s) is how long a stopped job waits for its requeue, ``poll`` (s)
    how often it looks for requests. ``job_quota`` and ``user_quota`` are for all that a job, and
    all jobs of a user, have there; ``keep_free`` is what saves leave of the file system. ``stage``
    is a directory on a disk of the node's own (``stage.py``). ``tmp``: ``own``, or ``node`` where
    jobs are to have the node's temporary directories (``ownplaces.py``).
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
        """The directory with one directory a job."""
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
    numbers = {name: _number(values, name, path) for name in ("hold", "poll") if name in values}
    keep = {"keep": int(_number(values, "keep", path))} if "keep" in values else {}
    amounts = {
        name: _amount(values, name, path)
        for name in ("job_quota", "user_quota", "keep_free")
        if name in values
    }
    own = {name: Path(values.pop(name)) for name in ("scratch", "stage") if name in values}
    texts = ("criu", "dmtcp", "scontrol", "slurmstepd", "sudo", "slurm_conf", "tmp")
    programs = {name: values.pop(name) for name in texts if name in values}
    if programs.get("tmp", "own") not in ("own", "node"):
        raise Refused(f"{path}: tmp is {programs['tmp']!r}, expected own or node")
    if values:
        raise Refused(f"{path}: unknown key {min(values)!r}")
    return Site(
        cluster=cluster, directory=directory, key=key, reader=(entry.pw_uid, entry.pw_gid),
        **numbers, **keep, **amounts, **own, **programs,  # type: ignore[arg-type]
    )  # fmt: skip


def trust(path: Path, *, directory: bool = False, private: bool = False) -> None:
    """Refused unless nobody but root can change what is at ``path``: it and all above it are
    root's own, not writable by others (but for sticky directories such as /tmp), no link. A
    ``private`` file is readable by root alone.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise Refused(f"{path}: not an absolute path")
    link = next((place for place in (*reversed(path.parents), path) if place.is_symlink()), None)
    if link is not None:
        raise Refused(f"{link}: a link")
    try:
        if directory != stat.S_ISDIR(path.lstat().st_mode):
            raise Refused(f"{path}: not a {'directory' if directory else 'file'}")
        wrong = flaw(path, ROOT, private=private)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    if wrong:
        raise Refused(wrong)


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


def _number(values: dict[str, str], name: str, path: str) -> float:
    text = values.pop(name)
    try:
        value = float(text)
    except ValueError as error:
        raise Refused(f"{path}: {name} is {text!r}, not a number") from error
    if not 0 < value < 1e9:
        raise Refused(f"{path}: {name} is {text}, not above 0 and below 1,000,000,000")
    return value


def _amount(values: dict[str, str], name: str, path: str) -> Amount:
    text = values.pop(name)
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([KMGT])|(%))", text)
    if not found:
        raise Refused(f"{path}: {name} is {text!r}, expected an amount such as 200G, 2T or 25%")
    number, unit, percent = float(found[1]), found[2], found[3]
    if percent:
        if number > 100:
            raise Refused(f"{path}: {name} is {text}, expected at most 100%")
        return Amount(text, share=number / 100)
    return Amount(text, size=int(number * 1024 ** ("KMGT".index(unit) + 1)))
