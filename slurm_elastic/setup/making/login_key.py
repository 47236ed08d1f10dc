"""The key pair with which the head logs in to machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, reason_of
from slurm_elastic.base.one_line import one_line
from slurm_elastic.config import Config

_NAME = "ssh_key"
COMMENT = "slurm-elastic init"
TIMEOUT_S = 30


def key_file(config: Config, config_path: Path) -> Path:
    """The path of the private key: that of ``join.ssh``, or else a file beside the
    configuration.
    """
    if config.join.ssh is not None:
        return Path(config.join.ssh.key)
    return config_path.absolute().parent / _NAME


def public_key(file: Path) -> str:
    """The type and the key of the public part, without its comment. "" if there is no such file.

    ConfigError if the file has no private key that can be read without a password.
    """
    if not file.exists():
        return ""
    # Without -P ssh-keygen would ask at the terminal.
    return " ".join(_keygen("-y", "-P", "", "-f", str(file), about=file).split()[:2])


def create_key(file: Path, user: str) -> str:
    """Create the key, which only ``user`` (SlurmUser) can read. Returns its public part. If another
    process has created the file at the same time, that file stays.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-") as directory:
        draft = Path(directory) / _NAME
        _keygen("-q", "-t", "ed25519", "-N", "", "-C", COMMENT, "-f", str(draft), about=file)
        try:
            is_new = writing.create(file, draft.read_bytes(), 0o600)
        except OSError as error:
            raise ConfigError(f"{file}: cannot be written: {reason_of(error)}") from None
    if is_new and os.geteuid() == 0:
        try:
            shutil.chown(file, user)
        except (LookupError, OSError) as error:
            raise ConfigError(f"{file}: cannot be given to {user}: {error}") from None
    return public_key(file)


def remove_key(file: Path) -> bool:
    """Remove a key that ``create_key`` has created. Returns whether it has removed one."""
    if not file.is_file() or file.is_symlink():
        return False
    comment = " ".join(_keygen("-y", "-P", "", "-f", str(file), about=file).split()[2:])
    if comment != COMMENT:
        return False
    file.unlink()
    return True


def _keygen(*arguments: str, about: Path) -> str:
    command = ["ssh-keygen", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise ConfigError("ssh-keygen is not installed: apt install openssh-client") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{about}: ssh-keygen did not end within {TIMEOUT_S} s") from None
    if done.returncode:
        reason = one_line(done.stderr, 200)
        raise ConfigError(f"{about}: expected a private key without a password: {reason}")
    return done.stdout
