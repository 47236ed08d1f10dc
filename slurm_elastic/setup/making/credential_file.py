"""The file with the services' own credentials. It is the only place of their secret."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, reason_of

_MARK = "# made by slurm-elastic init"
_SECRET = re.compile(r"^\s*application_credential_secret: (?P<secret>[\w-]+)$", re.MULTILINE)
_BYTES = 32


def path_of(config_path: Path, cloud: str) -> Path:
    """The path of the file, which is beside the configuration."""
    return config_path.absolute().parent / f"clouds-{cloud}.yaml"


def create(file: Path, content_of: Callable[[str], str], user: str) -> str:
    """Create the file with a new secret, which only ``user`` (SlurmUser) can read. Returns the
    secret. A file of an earlier run stays, because its secret may be in use.

    ConfigError if another file has the name.
    """
    secret = secrets.token_urlsafe(_BYTES)
    try:
        is_new = writing.create(file, f"{_MARK}\n{content_of(secret)}".encode(), 0o600)
        if is_new and os.geteuid() == 0:
            shutil.chown(file, user)
    except (LookupError, OSError) as error:
        raise ConfigError(f"{file}: cannot be written: {reason_of(error)}") from None
    if not (kept := secret_of(file)):
        raise ConfigError(f"{file}: it is there, and init did not make it: rename it")
    return kept


def secret_of(file: Path) -> str:
    """The secret in a file of ours; "" if there is no such file, or if it is not ours."""
    if file.is_symlink() or not file.is_file():
        return ""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    match = _SECRET.search(text) if text.startswith(_MARK) else None
    return match["secret"] if match else ""


def remove(file: Path) -> bool:
    """Remove a file that ``create`` has made. Returns whether it has removed one."""
    if not secret_of(file):
        return False
    file.unlink()
    return True
