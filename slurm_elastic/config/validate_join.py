"""Checks ``join`` and the pools' images, alone and beside the clouds. Pure."""

from __future__ import annotations

import re
import shlex

from slurm_elastic.base.units import format_duration
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.joining import CONSOLE, Join, Ssh
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.scratch import never_wiped

_HEAD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:(?P<port>[1-9][0-9]{0,4}))?")
_HOST_KEY = re.compile(
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]{40,}={0,2}( .*)?"
)
_MOST_PORT = 65535
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def check_join(draft: Draft) -> None:
    """Check ``join``, but for ``join.network``."""
    join = draft.section("join", Join, Join())
    if join is None:
        return
    _head(draft, join)
    _stop_command(draft, join)
    _heartbeat(draft, join)
    _gate(draft, join)
    if join.ssh is not None:
        _ssh(draft, join.ssh)


def check_images(draft: Draft) -> None:
    """A pool names its image in one way, and in a cloud that has images."""
    for i, pool in draft.pools.items():
        choice, cloud = pool.image, draft.cloud_of(pool)
        if choice is None:
            continue
        tagged = any((choice.os, choice.version, choice.software))
        ways = [choice.id is not None, choice.name is not None, tagged]
        at: KeyPath = ("pools", i, "image")
        if sum(ways) != 1:
            words = ("id", "name", "requirements")
            named = " and ".join(w for w, there in zip(words, ways, strict=True) if there)
            expected = "one of id, name, or requirements (os, version, software)"
            draft.problems.add(at, named or "nothing", expected)
        number = choice.id or "0"
        if cloud is None:
            continue
        if (wrong := cloud.wrong_image_id(number)) is not None:
            draft.problems.add((*at, "id"), shown(number), wrong)
        if not cloud.has_images:
            expected = f"no image: machines of cloud {cloud.name} have theirs from elsewhere"
            draft.problems.add(at, "an image", expected)


def _head(draft: Draft, join: Join) -> None:
    found = [_HEAD.fullmatch(one) for one in join.heads]
    if any(one is None or int(one["port"] or 1) > _MOST_PORT for one in found):
        expected = (
            "the head's name or address as machines know it, such as head.example.org,"
            f" or with a port from 1 to {_MOST_PORT}; of two heads both, with a comma"
        )
        draft.problems.add(("join", "head"), shown(join.head or ""), expected)
    for key in ("template", "ssh"):
        if join.head is None and getattr(join, key) is not None:
            expected = "join.head, too: without it machines are told nothing"
            draft.problems.add(("join", key), f"{key!r} alone", expected)


def _stop_command(draft: Draft, join: Join) -> None:
    try:
        words = shlex.split(join.stop_command)
    except ValueError:
        words = []
    if not words:
        expected = "a command, such as shutdown -h now"
        draft.problems.add(("join", "stop_command"), shown(join.stop_command), expected)


def _gate(draft: Draft, join: Join) -> None:
    """Root will empty the directories of ``wipe``: none may be one that a machine needs."""
    if join.check is not None and not join.check.strip():
        draft.problems.add(("join", "check"), shown(join.check), "a command")
    for number, text in enumerate(join.wipe):
        if why := never_wiped(text):
            found = f"{shown(text)}, {why}"
            expected = "a directory for jobs' files, such as /scratch or /tmp"
            draft.problems.add(("join", "wipe", number), found, expected)


def _heartbeat(draft: Draft, join: Join) -> None:
    """While a machine boots it cannot reach slurmctld; that must not look like the head's death."""
    boots = [draft.timing("resume_timeout"), *(c.resume_timeout for c in draft.clouds.values())]
    longest = max((boot for boot in boots if boot is not None), default=None)
    if join.head and longest is not None and join.heartbeat_timeout <= longest:
        expected = f"more than {format_duration(longest)}, the longest resume_timeout"
        found = str(format_duration(join.heartbeat_timeout))
        draft.problems.add(("join", "heartbeat_timeout"), found, expected)


def _ssh(draft: Draft, ssh: Ssh) -> None:
    at: KeyPath = ("join", "ssh")
    if (ssh.munge_key is None) == (ssh.slurm_keys is None):
        found = "neither munge_key nor slurm_keys" if ssh.munge_key is None else "both"
        draft.problems.add(at, found, "munge_key, or with auth/slurm slurm_keys")
    if not _USER.fullmatch(ssh.user):
        draft.problems.add((*at, "user"), shown(ssh.user), "a user name")
    if ssh.host_key != CONSOLE and not _HOST_KEY.fullmatch(ssh.host_key):
        expected = f"{CONSOLE}, or a public key such as ssh-ed25519 AAAA..."
        draft.problems.add((*at, "host_key"), shown(ssh.host_key), expected)
    silent = [c.name for c in draft.clouds.values() if not c.shows_console]
    if ssh.host_key == CONSOLE and silent:
        expected = f"the public host key of the image: {', '.join(silent)} shows no console output"
        draft.problems.add((*at, "host_key"), shown(ssh.host_key), expected)
