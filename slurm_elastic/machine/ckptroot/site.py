"""Read root's configuration on a node, and check whether a path is safely root's."""

from __future__ import annotations

import pwd
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = "/etc/slurm-elastic/ckpt-root.conf"
_MAX_BYTES = 1 << 20


class RequestRefused(Exception):  # noqa: N818 - an answer to the caller, not a failure of ours
    """The request is refused. The text of the exception says why."""


class WrongImage(RequestRefused):
    """The image was verified as wrong: no node can use it. Every other error may be of this node,
    or of this moment.
    """


class Absent(RequestRefused):
    """A directory is not there now, as while its file server is away."""


@dataclass(frozen=True)
class Amount:
    """Bytes, or a share (0 to 1) of a file system."""

    text: str
    size: int = 0
    share: float = 0.0

    def of(self, total: int) -> int:
        """Return the bytes on a file system of ``total`` bytes."""
        return self.size or int(self.share * total)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class HelperSite:
    """The configuration of the root part.

    - ``directory``: shared by all nodes and the head.
    - ``key``: authenticates manifests; the same on all nodes.
    - ``reader``: uid and gid of SlurmUser.
    - ``keep``: how many images of a job are kept.
    - ``hold``: seconds that a stopped job waits for its requeue, after the head has had the time to
      read its image. ``poll``: seconds between two looks for requests.
    - ``job_quota``, ``user_quota``: limits in the directory for a job, and for all jobs of a user.
      ``keep_free``: what saves leave free on the file system.
    - ``stage``: a directory on a local disk of the node (``node_disk.py``).
    - ``tmp``: ``own``, or ``node`` to give jobs the node's temporary directories
      (``private_tmp.py``).
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
        """The directory that contains a directory for each job."""
        return self.directory / self.cluster

    def program(self, name: str) -> str:
        """The path of another of Slurm's commands, which is beside scontrol."""
        return str(Path(self.scontrol).with_name(name))


def read(path: str = CONFIG, *, checks_directory: bool = True) -> HelperSite:
    """Read the configuration: ``name = value`` lines.

    RequestRefused if a value is wrong, or if another user than root could have written the file,
    the key or the shared directory. Without ``checks_directory`` the caller must check that.
    """
    values = _values(_read_trusted(Path(path)).decode())
    key = _read_trusted(Path(values.pop("key", "/etc/slurm-elastic/ckpt.key")), private=True)
    # HMAC-SHA-256 is no stronger than its key.
    if len(key) < 32:
        raise RequestRefused("the key has fewer than 32 bytes")
    directory = Path(_needed(values, "directory", path))
    cluster = _needed(values, "cluster", path)
    if not cluster.replace("-", "").replace("_", "").isalnum():
        raise RequestRefused(f"{path}: cluster {cluster!r} is not a name")
    if checks_directory:
        trust(directory, directory=True)
    user = values.pop("slurm_user", "slurm")
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise RequestRefused(f"{path}: this host has no user {user}") from error
    settings = {
        name: parse(values.pop(name), f"{path}: {name}")
        for name, parse in _READ.items()
        if name in values
    }
    if settings.get("tmp", "own") not in ("own", "node"):
        raise RequestRefused(f"{path}: tmp is {settings['tmp']!r}, expected own or node")
    if values:
        raise RequestRefused(f"{path}: unknown key {min(values)!r}")
    reader = (entry.pw_uid, entry.pw_gid)
    return HelperSite(cluster=cluster, directory=directory, key=key, reader=reader, **settings)


def trust(path: Path, *, directory: bool = False, private: bool = False) -> None:
    """RequestRefused unless only root can change the file or directory at ``path``; Absent if
    there is no such directory.

    The path and all directories above must be root's, must not be links, and must not be writable
    by others (except sticky directories such as /tmp). A ``private`` file must be readable by root
    alone.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise RequestRefused(f"{path}: not an absolute path")
    # From the root down: whoever may write to a directory above can replace all below it.
    for place in (*reversed(path.parents), path):
        try:
            status = place.lstat()
        except OSError as error:
            refusal = Absent if directory else RequestRefused
            raise refusal(f"{path}: {error.strerror}") from error
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            raise RequestRefused(f"{place}: a link")
        if place == path and directory != stat.S_ISDIR(status.st_mode):
            raise RequestRefused(f"{path}: not a {'directory' if directory else 'file'}")
        if status.st_uid != 0:
            raise RequestRefused(
                f"{place} belongs to uid {status.st_uid}, not to root; chown root {place}"
            )
        # Only root and an entry's owner can rename an entry of a sticky directory.
        if mode & 0o022 and not (stat.S_ISDIR(status.st_mode) and mode & stat.S_ISVTX):
            problem = f"may be written by others (mode {mode:04o})"
            raise RequestRefused(f"{place} {problem}; chmod go-w {place}")
    if private and mode & 0o077:
        problem = f"may be read by others (mode {mode:04o})"
        raise RequestRefused(f"{path} {problem}; chmod 600 {path}")


def _read_trusted(path: Path, *, private: bool = False) -> bytes:
    trust(path, private=private)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise RequestRefused(f"{path}: {error.strerror}") from error
    if len(content) > _MAX_BYTES:
        raise RequestRefused(f"{path}: more than {_MAX_BYTES} bytes long")
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
        raise RequestRefused(f"{path}: no {name!r}")
    return values.pop(name)


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise RequestRefused(f"{name} is {text!r}, not a number") from error
    if not 0 < value < 1e9:
        raise RequestRefused(f"{name} is {text}, not above 0 and below 1,000,000,000")
    return value


def _amount(text: str, name: str) -> Amount:
    amount = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([KMGT])|(%))", text)
    if not amount:
        raise RequestRefused(f"{name} is {text!r}, expected an amount such as 200G, 2T or 25%")
    number, unit, percent = float(amount[1]), amount[2], amount[3]
    if percent:
        if number > 100:
            raise RequestRefused(f"{name} is {text}, expected at most 100%")
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
