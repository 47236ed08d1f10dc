"""Rotates the secret of the head and of all living machines, and leaves no machine behind.

Each host has one function that makes it use a given key: ``make_head``, ``Rotation.make``. To take
a rotation back is the same function with the old key, so no host keeps a second key beside its own
that a later rotation could mistake for the old one. The head's file of ``join.ssh`` is the one
place that says which key is wanted.

munged knows one key at a time, so for a moment some machines have the old key and some the new one.
Slurm's messages between them fail in that moment and Slurm sends them again. Before any host
changes, ``Rotation.try_out`` proves that all machines can be reached and can write the key. A
machine that boots and has no key yet gets the new key from slurm-elasticd.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.processes.whole_group import run_whole
from slurm_elastic.config import Config
from slurm_elastic.config.sections.joining import Ssh
from slurm_elastic.features.network.host_keys import KnownHosts, host_key
from slurm_elastic.features.network.join_secret import owner_of, read_munge_key, require_private
from slurm_elastic.features.network.munge_keys import takes_key
from slurm_elastic.features.network.ssh_file import FileTarget, PushError, ordered, read_private_key
from slurm_elastic.providers.base.joining import KEY_MARK
from slurm_elastic.state.ledger import Machine

SIZE = 1024
"""Bytes of a new key: the most that munged takes (munged(8))."""
RESTART = "systemctl restart munge.service"
MUNGE_KEY = "/etc/munge/munge.key"
_INSTALL = f"[ {{key}} -ef {MUNGE_KEY} ] || install -m 0400 -o munge -g munge {{key}} {MUNGE_KEY}"
HEAD = f"{{ {_INSTALL}; }} && {RESTART}"
"""The command that lets the head use ``{key}``. Without the test a site whose ``munge_key`` is
munged's own file could not rotate: install(1) refuses to copy a file onto itself.
"""
# A machine that boots and has no key yet gets it from slurm-elasticd, so `_run_at` ignores its
# error. A registered machine without the file has lost it, or has its key at another place.
_TRY = """set -e
umask 077
[ -e {target} ] || {{ echo {target} does not exist >&2; exit 1; }}
draft=$(mktemp {target}.XXXXXX)
trap 'rm -f "$draft"' EXIT
cat >"$draft"
test "$(wc -c <"$draft")" -eq {size}
"""
# The restart comes also if the file is the wanted one already: an earlier restart may have failed.
_MAKE = (
    _TRY
    + """chown {owner} "$draft"
chmod 0400 "$draft"
mv -f "$draft" {target}
{restart}
"""
)


class RotationResult(Struct, frozen=True):
    """The result on the machine ``id``. ``wrong``: the error, or ""."""

    node: str
    wrong: str
    id: str = ""


class Rotation:
    """One change of keys. ``machines``: the ledger's machines. Only wanted ones with an address
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
            # Not a machine whose end is decided, although its cloud may still refuse the end: it
            # serves no job again, and may be down.
            if m.is_wanted and m.instance.address and takes_key(config, m.instance.cloud)
        )

    def try_out(self, text_for: Callable[[str], bytes]) -> list[RotationResult]:
        """Prove that every machine can take the key, and change nothing. ``text_for`` returns the
        key for a cloud.
        """
        return self._run_everywhere(_TRY, text_for)

    def make(self, text_for: Callable[[str], bytes]) -> list[RotationResult]:
        """Make every machine use the key, whichever it has now."""
        return self._run_everywhere(_MAKE, text_for)

    def _run_everywhere(
        self, script: str, text_for: Callable[[str], bytes]
    ) -> list[RotationResult]:
        if not self.machines:
            return []
        with ThreadPoolExecutor(self._ssh.at_once) as workers:
            return list(
                workers.map(
                    lambda m: self._run_at(m, script, text_for(m.instance.cloud)), self.machines
                )
            )

    def _run_at(self, machine: Machine, script: str, text: bytes) -> RotationResult:
        instance = machine.instance
        address = instance.address or ""
        target = FileTarget(
            address=address, port=self._ssh.port, user=self._ssh.user, path=self._ssh.place,
            owner=owner_of(self._ssh), mark=KEY_MARK, timeout=self._ssh.timeout,
        )  # fmt: skip
        keys = self._fixed or self._known.keys(instance.id, address, self._ssh.port)
        script = script.format(
            target=shlex.quote(target.path), size=len(text), owner=shlex.quote(target.owner),
            restart=self._restart,
        )  # fmt: skip
        try:
            ordered(target, self._private_key, keys, script, text)
        except PushError as error:
            # A machine that still boots gets the new key from slurm-elasticd, so this is no error.
            wrong = str(error) if machine.registered_at is not None else ""
            return RotationResult(instance.node, wrong, instance.id)
        return RotationResult(instance.node, "", instance.id)


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


def secret_now(ssh: Ssh) -> bytes:
    """The secret that all hosts should use now. ConfigError if its file cannot be read."""
    try:
        return Path(ssh.secret).read_bytes()
    except OSError as error:
        raise _unusable(ssh, error) from error


def make_head(ssh: Ssh, text: bytes, command: str) -> None:
    """Make the head use the key, whichever it has now: write it to the file from which
    slurm-elasticd copies it to new machines, and run the ``command``.

    ConfigError if the file cannot be written: nothing is changed then. SlurmElasticError if the
    command fails: the head may use either key then, because half of the command may be done.
    """
    # The file first: a machine that boots from now on gets this key.
    put_copy(ssh, text)
    on_head(command, ssh)


def put_copy(ssh: Ssh, text: bytes) -> None:
    """Replace the file from which slurm-elasticd copies the secret to new machines. Its owner is
    kept. ConfigError if it cannot be written.
    """
    path = Path(ssh.secret)
    try:
        status = path.stat()
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        writing.replace(path, text, 0o400, owner)
    except OSError as error:
        raise _unusable(ssh, error) from error


def _unusable(ssh: Ssh, error: OSError) -> ConfigError:
    setting = "slurm_keys" if ssh.slurm_keys else "munge_key"
    return ConfigError(f"join.ssh.{setting}: {ssh.secret}: {error.strerror}")


def command_line_of(command: str, ssh: Ssh) -> str:
    """The command for the head, with the path of the key in it."""
    return command.replace("{key}", shlex.quote(ssh.secret))


def on_head(command: str, ssh: Ssh, timeout: float = 60.0) -> None:
    """Run the command for the head, with ``{key}`` replaced by the path of the copy.
    SlurmElasticError with the command's error output if it fails or takes longer than ``timeout``
    seconds. Then no process of it is left: a child that goes on would bring the new key to hosts
    that already have the old key again.
    """
    command_line = command_line_of(command, ssh)
    try:
        done = run_whole(["/bin/sh", "-c", command_line], timeout)
    except subprocess.TimeoutExpired:
        raise SlurmElasticError(f"no end in {timeout:g} s: {command_line}") from None
    if done.returncode:
        raise SlurmElasticError(
            f"exit {done.returncode}: {command_line}: {done.stderr.strip()[-300:]}"
        )
