"""The secret by which a machine's slurmd is believed: the munge key, or its cloud's keys of
auth/slurm.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from slurm_elastic.base import trust
from slurm_elastic.base.account import account
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.joining import Ssh
from slurm_elastic.slurm.conf import keyset


def text_for(ssh: Ssh, cloud: str, now: float) -> bytes:
    """The secret for a machine of that cloud, read anew: ``key rotate`` may have changed it.
    ConfigError where it cannot be used.
    """
    if ssh.slurm_keys is None:
        return read_munge_key(ssh.secret)
    return read_slurm_keys(ssh.slurm_keys).for_cloud(cloud, now).encoded()


def owner_of(ssh: Ssh) -> str:
    """``user:group`` of the file on the machine: slurmd, which is root, reads its keys itself."""
    return "munge:munge" if ssh.slurm_keys is None else "root:root"


def read_munge_key(path: str) -> bytes:
    """The munge key (32 to 1024 bytes, munged(8)); ConfigError as above."""
    require_private(path, "join.ssh.munge_key")
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"join.ssh.munge_key: {path} cannot be read: {error.strerror}") from error
    if not 32 <= len(text) <= 1024:
        raise ConfigError(f"join.ssh.munge_key: {path} has {len(text)} bytes, expected 32 to 1024")
    return text


def read_slurm_keys(path: str) -> keyset.KeySet:
    """The head's keys of auth/slurm; ConfigError as above."""
    require_private(path, "join.ssh.slurm_keys")
    try:
        return keyset.read(path)
    except OSError as error:
        raise ConfigError(
            f"join.ssh.slurm_keys: {path} cannot be read: {error.strerror}"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"join.ssh.slurm_keys: {error}") from None


def require_private(path: str, what: str) -> None:
    """ConfigError where others than we, or munged, may have written the file, or may read it."""
    munged = set()
    with contextlib.suppress(KeyError):
        munged = {account("munge").pw_uid}
    try:
        wrong = trust.flaw(path, trust.ours() | munged, private=True)
    except OSError as error:
        raise ConfigError(f"{what}: {path} cannot be read: {error.strerror}") from error
    if wrong:
        raise ConfigError(f"{what}: {wrong}")
