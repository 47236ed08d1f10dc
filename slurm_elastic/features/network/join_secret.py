"""The secret with which a machine's slurmd authenticates: the munge key, or its cloud's keys for
auth/slurm.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from slurm_elastic.base import trust
from slurm_elastic.base.account import account
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.sections.joining import Ssh
from slurm_elastic.slurm.conf import keyset


def text_for(ssh: Ssh, cloud: str, now: float) -> bytes:
    """The secret for a machine of the cloud at ``now`` (Unix time). Each call reads the file,
    because ``key rotate`` may have changed it. ConfigError if the file cannot be used.
    """
    if ssh.slurm_keys is None:
        return read_munge_key(ssh.secret)
    return read_slurm_keys(ssh.slurm_keys).for_cloud(cloud, now).encoded()


def owner_of(ssh: Ssh) -> str:
    """``user:group`` of the secret's file on a machine. The keys of auth/slurm belong to root,
    because slurmd reads them itself and runs as root.
    """
    return "munge:munge" if ssh.slurm_keys is None else "root:root"


def restart_of(ssh: Ssh) -> str:
    """The command by which a running daemon of a machine takes another secret. It starts none."""
    if ssh.slurm_keys is None:
        return "systemctl try-restart munge.service"
    return "systemctl try-reload-or-restart slurmd.service"


def read_munge_key(path: str) -> bytes:
    """The munge key (32 to 1024 bytes, munged(8)). ConfigError if the file is unreadable, not
    private or of another size.
    """
    require_private(path, "join.ssh.munge_key")
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"join.ssh.munge_key: {path} cannot be read: {error.strerror}") from error
    if not 32 <= len(text) <= 1024:
        raise ConfigError(f"join.ssh.munge_key: {path} has {len(text)} bytes, expected 32 to 1024")
    return text


def read_slurm_keys(path: str) -> keyset.KeySet:
    """The head's keys for auth/slurm. ConfigError if the file is unreadable, not private or
    malformed.
    """
    require_private(path, "join.ssh.slurm_keys")
    try:
        return keyset.read(path)
    except OSError as error:
        raise ConfigError(
            f"join.ssh.slurm_keys: {path} cannot be read: {error.strerror}"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"join.ssh.slurm_keys: {error}") from None


def require_private(path: str, setting: str) -> None:
    """ConfigError if users other than us and munge could have written the file, or can read it.
    ``setting`` names the configuration key in the error.
    """
    munged = set()
    with contextlib.suppress(KeyError):
        munged = {account("munge").pw_uid}
    try:
        flaw = trust.flaw(path, trust.ours() | munged, private=True)
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from error
    if flaw:
        raise ConfigError(f"{setting}: {flaw}")
