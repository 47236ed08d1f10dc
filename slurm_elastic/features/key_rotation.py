"""A new secret for the head and all living machines, without a machine that is left behind.

munged knows one key at a time, so there is a moment in which some have the old one and some the
new: Slurm's messages between them fail then and are sent again. First the new key is laid beside
the old one on every machine, which changes nothing; only where that worked everywhere do they
change. A machine that boots and has no key yet gets the new one from slurm-elasticd.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.config import Config
from slurm_elastic.config.joining import Ssh
from slurm_elastic.features.host_keys import KnownHosts, host_key
from slurm_elastic.features.join_secret import owner_of, read_munge_key, require_private
from slurm_elastic.features.munge_keys import takes_key
from slurm_elastic.features.ssh_file import PushError, Target, ordered, read_private_key
from slurm_elastic.providers.base.joining import KEY_MARK
from slurm_elastic.state.ledger import Machine

SIZE = 1024
"""Bytes of a new key: the most that munged takes (munged(8))."""
RESTART = "systemctl restart munge.service"
HEAD = "install -m 0400 -o munge -g munge {key} /etc/munge/munge.key && " + RESTART
NEXT, BEFORE = ".next", ".before"
_STAGE = """set -e
umask 077
draft=$(mktemp {target}{next}.XXXXXX)
trap 'rm -f "$draft"' EXIT
cat >"$draft"
test "$(wc -c <"$draft")" -eq {size}
chown {owner} "$draft"
chmod 0400 "$draft"
mv -f "$draft" {target}{next}
"""
_CHANGE = """set -e
[ -e {target} ] || exit 0
cp -pf {target} {target}{before}
mv -f {target}{next} {target}
{restart}
"""
_BACK = """set -e
[ -e {target}{before} ] || exit 0
mv -f {target}{before} {target}
{restart}
"""


Order = Callable[[Machine, Target], tuple[str, bytes]]
"""The script for a machine, and what it reads."""


class Result(Struct, frozen=True):
    """A machine and what went wrong there; empty where nothing did."""

    node: str
    wrong: str


class Rotation:
    """One change of keys. ``machines`` are those of the ledger that live."""

    def __init__(
        self, config: Config, ssh: Ssh, machines: Iterable[Machine], *, restart: str = RESTART,
    ) -> None:  # fmt: skip
        self._ssh, self._restart = ssh, restart
        self._ours = read_private_key(ssh.key)
        self._known = KnownHosts((config.state / "known_hosts").resolve())
        self._fixed = () if ssh.host_key == "console" else (host_key(ssh.host_key),)
        self.machines = tuple(
            m
            for m in machines
            if not m.has_ended and m.instance.address and takes_key(config, m.instance.cloud)
        )

    def stage(self, text_for: Callable[[str], bytes]) -> list[Result]:
        """Lay the new key of its cloud beside the old one on every machine: nothing uses it yet."""

        def one(machine: Machine, target: Target) -> tuple[str, bytes]:
            text = text_for(machine.instance.cloud)
            script = _STAGE.format(
                target=shlex.quote(target.path), next=NEXT, size=len(text),
                owner=shlex.quote(target.owner),
            )  # fmt: skip
            return script, text

        return self._everywhere(one)

    def unstage(self) -> list[Result]:
        """Take it away again."""
        return self._everywhere(lambda _, t: (f"rm -f {shlex.quote(t.path + NEXT)}", b""))

    def change(self) -> list[Result]:
        """Have every machine use the new key, and keep the old one beside it."""
        return self._everywhere(lambda _, t: (self._scripted(_CHANGE, t), b""))

    def back(self) -> list[Result]:
        """Have every machine use the one of before."""
        return self._everywhere(lambda _, t: (self._scripted(_BACK, t), b""))

    def _scripted(self, script: str, target: Target) -> str:
        return script.format(
            target=shlex.quote(target.path), next=NEXT, before=BEFORE, restart=self._restart
        )

    def _everywhere(self, order: Order) -> list[Result]:
        if not self.machines:
            return []
        with ThreadPoolExecutor(self._ssh.at_once) as workers:
            return list(workers.map(lambda m: self._at(m, order), self.machines))

    def _at(self, machine: Machine, order: Order) -> Result:
        one = machine.instance
        address = one.address or ""
        target = Target(
            address=address, port=self._ssh.port, user=self._ssh.user, path=self._ssh.place,
            owner=owner_of(self._ssh), mark=KEY_MARK, timeout=self._ssh.timeout,
        )  # fmt: skip
        keys = self._fixed or self._known.keys(one.id, address, self._ssh.port)
        script, text = order(machine, target)
        try:
            ordered(target, self._ours, keys, script, text)
        except PushError as error:
            # One that boots still, and is not up yet, gets the new key when it is.
            return Result(one.node, str(error) if machine.registered_at is not None else "")
        return Result(one.node, "")


def failed(results: Sequence[Result]) -> list[Result]:
    """The machines where something went wrong."""
    return [one for one in results if one.wrong]


def new_key(path: str | None) -> bytes:
    """The key in a file, or a fresh one; ConfigError where the file cannot be one."""
    if path is None:
        return os.urandom(SIZE)
    require_private(path, "--key")
    return read_munge_key(path)


def put_copy(ssh: Ssh, text: bytes) -> None:
    """The file from which slurm-elasticd brings new machines theirs, with the owner it has; the one
    of before stays beside it. ConfigError where it cannot be written.
    """
    path = Path(ssh.secret)
    before = path.with_name(path.name + BEFORE)
    try:
        found = path.stat()
        owner = (found.st_uid, found.st_gid) if os.geteuid() == 0 else None
        before.unlink(missing_ok=True)
        os.link(path, before)
        writing.replace(path, text, 0o400, owner)
    except OSError as error:
        what = "slurm_keys" if ssh.slurm_keys else "munge_key"
        raise ConfigError(f"join.ssh.{what}: {path}: {error.strerror}") from error


def put_back(ssh: Ssh) -> None:
    """The copy of before."""
    path = Path(ssh.secret)
    with contextlib.suppress(FileNotFoundError):
        path.with_name(path.name + BEFORE).replace(path)


def on_head(command: str, ssh: Ssh, timeout: float = 60.0) -> None:
    """Run the head's own step, with ``{key}`` as the path of the copy; SlurmElasticError with its
    words where it fails.
    """
    shown = command.replace("{key}", shlex.quote(ssh.secret))
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", shown], capture_output=True, text=True, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SlurmElasticError(f"no end in {timeout:g} s: {shown}") from None
    if done.returncode:
        raise SlurmElasticError(f"exit {done.returncode}: {shown}: {done.stderr.strip()[-300:]}")
