"""Checks ``join.mounts``, alone and beside the head, the tunnel and ``join.wipe``. Pure."""

from __future__ import annotations

import posixpath
import re

from slurm_elastic.config import DEFAULT_STATE, SlurmSettings
from slurm_elastic.config.basics.scratch import NEVER
from slurm_elastic.config.decode import nearest
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.mounting import has_mount, through_tunnel
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.sections.joining import HEAD, Join, Mount

NFS_PORT = 2049
_SOURCE = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):(?P<export>/.*)"
)
_PATH = re.compile(r"/[^\s\"'`$\\;&|<>()*?\[\]]*")
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@=-]*")
_NEEDED = tuple(place for place in NEVER if place != "home")
"""Directories of the machine itself. No mount may be at such a directory or below it. /home is not
among them, because it may be a mount.
"""
_LOSES = "jobs would lose data when the server is away for a minute"
_UNSAFE = {
    "soft": _LOSES, "softerr": _LOSES,
    "bg": "slurmd would start before the mount", "noauto": "slurmd would start before the mount",
    "nofail": "required: false does this",
    "nolock": "locks would hold on one machine only",
    "udp": "the server is asked by NFS 4 over TCP",
}  # fmt: skip
_VERSION = re.compile(r"(nfsvers|vers)=(?P<version>.*)")
_READ_ONLY = "ro"


def check_mounts(draft: Draft) -> None:
    """Check ``join.mounts``."""
    join = draft.section("join", Join, Join())
    if join is None or not join.mounts:
        return
    if join.head is None:
        expected = "join.head, too: without it machines learn nothing"
        draft.problems.add(("join", "mounts"), "'mounts' alone", expected)
    for number, mount in enumerate(join.mounts):
        place: KeyPath = ("join", "mounts", number)
        _path(draft, place, mount)
        _source(draft, place, mount)
        _options(draft, place, mount)
        _clouds(draft, place, mount)
        if mount.host == HEAD:
            _from_head(draft, place, join, mount)
    _twice(draft, join)
    _wiped(draft, join)


def _path(draft: Draft, place: KeyPath, mount: Mount) -> None:
    reason, path = "", mount.path
    if not _PATH.fullmatch(path) or ".." in path.split("/"):
        reason = "no absolute path without blanks and shell characters"
    elif posixpath.normpath(path).lstrip("/") == "":
        reason = "the whole machine"
    elif any(_is_below(posixpath.normpath(path), f"/{name}") for name in _NEEDED):
        reason = "a directory that the machine itself needs"
    if reason:
        expected = "a directory for users' files, such as /home or /shared"
        draft.problems.add((*place, "path"), f"{shown(path)}, {reason}", expected)


def _source(draft: Draft, place: KeyPath, mount: Mount) -> None:
    match = _SOURCE.fullmatch(mount.source)
    path: KeyPath = (*place, "from")
    if match is None or not _PATH.fullmatch(match["export"]) or ".." in match["export"].split("/"):
        expected = "HOST:/DIRECTORY, such as nfs.example.org:/home; head:/home is the head's own"
        draft.problems.add(path, shown(mount.source), expected)
        return
    if mount.host != HEAD:
        return
    state = draft.value(("state_dir",), str) or DEFAULT_STATE
    places = draft.section("slurm", SlurmSettings, SlurmSettings())
    private = [state, posixpath.dirname(places.conf) if places else ""]
    for directory in filter(None, private):
        if _is_below(directory, mount.export) or _is_below(mount.export, directory):
            expected = "a directory of the head without its state and configuration"
            draft.problems.add(path, f"{shown(mount.source)}, which has {directory}", expected)


def _options(draft: Draft, place: KeyPath, mount: Mount) -> None:
    for number, option in enumerate(mount.options):
        if expected := _expected_instead(option, mount):
            draft.problems.add((*place, "options", number), shown(option), expected)


def _expected_instead(option: str, mount: Mount) -> str:
    """Return what is expected in place of the option; "" if the option may stay."""
    if not _OPTION.fullmatch(option):
        return "one option of mount(8), such as ro"
    version = _VERSION.fullmatch(option)
    if version is not None and not version["version"].startswith("4"):
        return "NFS 4: locks of older versions outlive their machine"
    if option.startswith("x-systemd."):
        return "no unit of systemd: the machine mounts the directory before slurmd starts"
    if option.startswith("soft") and _READ_ONLY in mount.options:
        return ""
    return f"another option: {_UNSAFE[option]}" if option in _UNSAFE else ""


def _clouds(draft: Draft, place: KeyPath, mount: Mount) -> None:
    told_clouds = {c.name: c for c in draft.clouds.values() if c.by_user_data}
    for number, name in enumerate(mount.clouds):
        if name not in told_clouds and draft.all_whole:
            expected = "a cloud whose machines get user data: " + (
                f"one of {', '.join(told_clouds)}" if told_clouds else "there is none"
            )
            hint = nearest(name, told_clouds)
            draft.problems.add((*place, "clouds", number), shown(name), expected, hint)


def _from_head(draft: Draft, place: KeyPath, join: Join, mount: Mount) -> None:
    """Check that machines can tell which host is the head, and reach its NFS server."""
    network = join.network
    clouds = [cloud for cloud in draft.clouds.values() if has_mount(mount, cloud)]
    tunnels = [cloud.name for cloud in clouds if through_tunnel(network, cloud)]
    if len(join.heads) > 1 and len(tunnels) < len(clouds):
        expected = "a server by its name: there are two heads"
        draft.problems.add((*place, "from"), shown(mount.source), expected)
    if network is not None and tunnels and NFS_PORT not in network.head_ports:
        ports = list(network.head_ports)
        expected = f"{[*ports, NFS_PORT]}, with NFS: machines mount {mount.source}"
        draft.problems.add(("join", "network", "head_ports"), str(ports), expected)


def _twice(draft: Draft, join: Join) -> None:
    """Check that no cloud's machines make two mounts at one path."""
    for number, mount in enumerate(join.mounts):
        for earlier in join.mounts[:number]:
            clouds, earlier_clouds = set(mount.clouds), set(earlier.clouds)
            is_shared = not clouds or not earlier_clouds or bool(clouds & earlier_clouds)
            if is_shared and posixpath.normpath(mount.path) == posixpath.normpath(earlier.path):
                expected = f"another path: {earlier.source} is mounted there"
                draft.problems.add(("join", "mounts", number, "path"), shown(mount.path), expected)
                break


def _wiped(draft: Draft, join: Join) -> None:
    """Check that ``wipe`` names no shared directory: its program would refuse it, and the node
    would be drained.
    """
    for number, directory in enumerate(join.wipe):
        for mount in join.mounts:
            if _is_below(posixpath.normpath(directory), posixpath.normpath(mount.path)):
                expected = f"a directory of the machine itself, not of {mount.source}"
                draft.problems.add(("join", "wipe", number), shown(directory), expected)
                break


def _is_below(path: str, place: str) -> bool:
    """Whether ``path`` is ``place`` or below it."""
    return path == place or path.startswith(place.rstrip("/") + "/")
