"""Rotates the secret of the head and of all living machines, and leaves no machine behind.

munged knows one key at a time, so for a moment some machines have the old key and some the new one.
Slurm's messages between them fail in that moment and Slurm sends them again. The first step lays
the new key beside the old one on every machine, which changes nothing yet. The machines switch to
the new key only if that step worked on all of them. A machine that boots and has no key yet gets
the new key from slurm-elasticd.
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
from slurm_elastic.features.ssh_file import FileTarget, PushError, ordered, read_private_key
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


Order = Callable[[Machine, FileTarget], tuple[str, bytes]]
"""Returns the script for a machine, and the bytes for the script's standard input."""


class RotationResult(Struct, frozen=True):
    """The result on one machine. ``wrong``: the error, or ""."""

    node: str
    wrong: str


class Rotation:
    """One change of keys. ``machines``: the ledger's machines. Only living ones with an address
    that get their key by SSH take part.
    """

    def __init__(
        self, config: Config, ssh: Ssh, machines: Iterable[Machine], *, restart: str = RESTART,
    ) -> None:  # fmt: skip
        self._ssh, self._restart = ssh, restart
        self._private_key = read_private_key(ssh.key)
        self._known = KnownHosts((config.state / "known_hosts").resolve())
        self._fixed = () if ssh.host_key == "console" else (host_key(ssh.host_key),)
        self.machines = tuple(
            m
            for m in machines
            if not m.has_ended and m.instance.address and takes_key(config, m.instance.cloud)
        )

    def stage(self, text_for: Callable[[str], bytes]) -> list[RotationResult]:
        """Lay the new key beside the old one on every machine. Nothing uses it yet. ``text_for``
        returns the key for a cloud.
        """

        def make_script(machine: Machine, target: FileTarget) -> tuple[str, bytes]:
            text = text_for(machine.instance.cloud)
            script = _STAGE.format(
                target=shlex.quote(target.path), next=NEXT, size=len(text),
                owner=shlex.quote(target.owner),
            )  # fmt: skip
            return script, text

        return self._run_everywhere(make_script)

    def unstage(self) -> list[RotationResult]:
        """Remove the new key that ``stage`` laid down."""
        return self._run_everywhere(lambda _, t: (f"rm -f {shlex.quote(t.path + NEXT)}", b""))

    def change(self) -> list[RotationResult]:
        """Switch every machine to the new key. The old key stays beside it."""
        return self._run_everywhere(lambda _, t: (self._script(_CHANGE, t), b""))

    def back(self) -> list[RotationResult]:
        """Switch every machine back to the old key."""
        return self._run_everywhere(lambda _, t: (self._script(_BACK, t), b""))

    def _script(self, script: str, target: FileTarget) -> str:
        return script.format(
            target=shlex.quote(target.path), next=NEXT, before=BEFORE, restart=self._restart
        )

    def _run_everywhere(self, order: Order) -> list[RotationResult]:
        if not self.machines:
            return []
        with ThreadPoolExecutor(self._ssh.at_once) as workers:
            return list(workers.map(lambda m: self._run_at(m, order), self.machines))

    def _run_at(self, machine: Machine, order: Order) -> RotationResult:
        instance = machine.instance
        address = instance.address or ""
        target = FileTarget(
            address=address, port=self._ssh.port, user=self._ssh.user, path=self._ssh.place,
            owner=owner_of(self._ssh), mark=KEY_MARK, timeout=self._ssh.timeout,
        )  # fmt: skip
        keys = self._fixed or self._known.keys(instance.id, address, self._ssh.port)
        script, text = order(machine, target)
        try:
            ordered(target, self._private_key, keys, script, text)
        except PushError as error:
            # A machine that still boots gets the new key from slurm-elasticd, so this is no error.
            return RotationResult(
                instance.node, str(error) if machine.registered_at is not None else ""
            )
        return RotationResult(instance.node, "")


def failed(results: Sequence[RotationResult]) -> list[RotationResult]:
    """Return the results with an error."""
    return [result for result in results if result.wrong]


def new_key(path: str | None) -> bytes:
    """Read the key from a file, or create a random one if ``path`` is None. ConfigError if the file
    is not private or contains no munge key.
    """
    if path is None:
        return os.urandom(SIZE)
    require_private(path, "--key")
    return read_munge_key(path)


def put_copy(ssh: Ssh, text: bytes) -> None:
    """Replace the file from which slurm-elasticd copies the secret to new machines. Its owner is
    kept, and the old file stays beside it. ConfigError if it cannot be written.
    """
    path = Path(ssh.secret)
    before = path.with_name(path.name + BEFORE)
    try:
        status = path.stat()
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        # link(2) does not replace. A copy of an earlier rotation may still be there.
        before.unlink(missing_ok=True)
        # A link and not a rename: at no time is there no key for new machines.
        os.link(path, before)
        writing.replace(path, text, 0o400, owner)
    except OSError as error:
        setting = "slurm_keys" if ssh.slurm_keys else "munge_key"
        raise ConfigError(f"join.ssh.{setting}: {path}: {error.strerror}") from error


def put_back(ssh: Ssh) -> None:
    """Restore the file that ``put_copy`` replaced."""
    path = Path(ssh.secret)
    with contextlib.suppress(FileNotFoundError):
        path.with_name(path.name + BEFORE).replace(path)


def on_head(command: str, ssh: Ssh, timeout: float = 60.0) -> None:
    """Run the command for the head, with ``{key}`` replaced by the path of the copy.
    SlurmElasticError with the command's error output if it fails or takes longer than ``timeout``
    seconds.
    """
    command_line = command.replace("{key}", shlex.quote(ssh.secret))
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command_line], capture_output=True, text=True, timeout=timeout,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SlurmElasticError(f"no end in {timeout:g} s: {command_line}") from None
    if done.returncode:
        raise SlurmElasticError(
            f"exit {done.returncode}: {command_line}: {done.stderr.strip()[-300:]}"
        )
