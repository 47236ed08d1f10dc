"""Checks ``join`` and the pools' images, alone and beside the clouds. Pure."""

from __future__ import annotations

import re
import shlex

from slurm_elastic.base.units import format_duration
from slurm_elastic.config.basics.scratch import never_wiped
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.config.sections.joining import CONSOLE, Join, Ssh

_HEAD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:(?P<port>[1-9][0-9]{0,4}))?")
_HOST_KEY = re.compile(
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]{40,}={0,2}( .*)?"
)
_MAX_PORT = 65535
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def check_join(draft: Draft) -> None:
    """Check ``join``, except ``join.network``."""
    join = draft.section("join", Join, Join())
    if join is None:
        return
    _head(draft, join)
    _stop_command(draft, join)
    _heartbeat(draft, join)
    _gate(draft, join)
    if join.ssh is not None:
        _ssh(draft, join.ssh)
    _copying(draft, join)


def check_images(draft: Draft) -> None:
    """Check that a pool names its image in one way, and only in a cloud that has images."""
    for i, pool in draft.pools.items():
        choice, cloud = pool.image, draft.cloud_of(pool)
        if choice is None:
            continue
        tagged = any((choice.os, choice.version, choice.software))
        ways = [choice.id is not None, choice.name is not None, tagged]
        path: KeyPath = ("pools", i, "image")
        if sum(ways) != 1:
            names = ("id", "name", "requirements")
            named = " and ".join(
                name for name, is_given in zip(names, ways, strict=True) if is_given
            )
            expected = "one of id, name, or requirements (os, version, software)"
            draft.problems.add(path, named or "nothing", expected)
        number = choice.id or "0"
        if cloud is None:
            continue
        if (expected_id := cloud.wrong_image_id(number)) is not None:
            draft.problems.add((*path, "id"), shown(number), expected_id)
        if not cloud.has_images:
            expected = f"no image: machines of cloud {cloud.name} have theirs from elsewhere"
            draft.problems.add(path, "an image", expected)


def _head(draft: Draft, join: Join) -> None:
    matches = [_HEAD.fullmatch(match) for match in join.heads]
    if any(match is None or int(match["port"] or 1) > _MAX_PORT for match in matches):
        expected = (
            "the head's name or address as machines know it, such as head.example.org,"
            f" or with a port from 1 to {_MAX_PORT}; of two heads both, with a comma"
        )
        draft.problems.add(("join", "head"), shown(join.head or ""), expected)
    for key in ("template", "ssh"):
        if join.head is None and getattr(join, key) is not None:
            expected = "join.head, too: without it machines learn nothing"
            draft.problems.add(("join", key), f"{key!r} alone", expected)


def _stop_command(draft: Draft, join: Join) -> None:
    if not _is_command(join.stop_command):
        expected = "a command, such as shutdown -h now"
        draft.problems.add(("join", "stop_command"), shown(join.stop_command), expected)


def _is_command(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:
        return False


def _gate(draft: Draft, join: Join) -> None:
    """Check ``join.check`` and ``join.wipe``. Root will empty the directories of ``wipe``, so it
    may name no directory that a machine needs.
    """
    if join.check is not None and not _is_command(join.check):
        draft.problems.add(("join", "check"), shown(join.check), "a command")
    for number, text in enumerate(join.wipe):
        if reason := never_wiped(text):
            actual = f"{shown(text)}, {reason}"
            expected = "a directory for jobs' files, such as /scratch or /tmp"
            draft.problems.add(("join", "wipe", number), actual, expected)


def _copying(draft: Draft, join: Join) -> None:
    """Check that the head can log in to machines (``join.ssh``) if it copies files to them."""
    copying = [c.name for c in draft.clouds.values() if c.data is Data.COPY]
    if copying and join.ssh is None:
        expected = f"join.ssh, by which the head gets in for data: copy ({', '.join(copying)})"
        draft.problems.add(("join",), "no 'ssh'", expected)


def _heartbeat(draft: Draft, join: Join) -> None:
    """Check the heartbeat time-out. A booting machine cannot reach slurmctld for a while, and this
    pause must not look like a dead head.
    """
    boots = [draft.timing("resume_timeout"), *(c.resume_timeout for c in draft.clouds.values())]
    longest = max((boot for boot in boots if boot is not None), default=None)
    if join.head and longest is not None and join.heartbeat_timeout <= longest:
        expected = f"more than {format_duration(longest)}, the longest resume_timeout"
        actual = str(format_duration(join.heartbeat_timeout))
        draft.problems.add(("join", "heartbeat_timeout"), actual, expected)


def _ssh(draft: Draft, ssh: Ssh) -> None:
    path: KeyPath = ("join", "ssh")
    if (ssh.munge_key is None) == (ssh.slurm_keys is None):
        actual = "neither munge_key nor slurm_keys" if ssh.munge_key is None else "both"
        draft.problems.add(path, actual, "munge_key, or with auth/slurm slurm_keys")
    if not _USER.fullmatch(ssh.user):
        draft.problems.add((*path, "user"), shown(ssh.user), "a user name")
    if ssh.host_key != CONSOLE and not _HOST_KEY.fullmatch(ssh.host_key):
        expected = f"{CONSOLE}, or a public key such as ssh-ed25519 AAAA..."
        draft.problems.add((*path, "host_key"), shown(ssh.host_key), expected)
    silent = [c.name for c in draft.clouds.values() if not c.shows_console]
    if ssh.host_key == CONSOLE and silent:
        expected = f"the public host key of the image: {', '.join(silent)} shows no console output"
        draft.problems.add((*path, "host_key"), shown(ssh.host_key), expected)
