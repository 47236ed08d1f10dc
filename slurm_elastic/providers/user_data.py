"""Texts for cloud-init, whatever the cloud: reading a site's file, and several parts in one.

All of it can be read by every process on the machine, and by whoever may look at the machine in the
cloud, so it never holds a secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from slurm_elastic.errors import ConfigError

PROGRAM = "#!"
KINDS = {
    "#cloud-config": "text/cloud-config",
    "#cloud-boothook": "text/cloud-boothook",
    "#include": "text/x-include-url",
    PROGRAM: "text/x-shellscript",
    "#part-handler": "text/part-handler",
    "## template: jinja": "text/jinja2",
}
"""What a part may begin with, and its content type (cloud-init, user-data formats)."""
_BOUNDARY = "==slurm-elastic=="


def read_user_data(path: str | None, cloud: str) -> str:
    """The site's file for a cloud's machines; ConfigError as ``read_part``, and where it is not
    cloud-init's.
    """
    if path is None:
        return ""
    text = read_part(path, f"user_data of cloud {cloud!r}")
    if text and not text.startswith(tuple(KINDS)):
        raise ConfigError(
            f"user_data of cloud {cloud!r}: {path} begins with none of cloud-init's "
            f"{', '.join(KINDS)}"
        )
    return text


def read_part(path: str, what: str) -> str:
    """A file that every machine runs as root; ConfigError where it cannot be read, or others than
    its owner may write it.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} cannot be read: {error}") from error
    if mode & 0o022:
        raise ConfigError(
            f"{what}: {path} may be written by others than its owner; chmod go-w {path}"
        )
    return text


def kind_of(text: str) -> str:
    """The content type of a part, by its beginning."""
    return next(kind for start, kind in KINDS.items() if text.startswith(start))


def multipart(parts: Iterable[str]) -> str:
    """One document of several parts, which cloud-init takes in this order.

    The same parts always give the same text: some clouds compare a repeated launch with the first.
    """
    document = "".join(
        f'--{_BOUNDARY}\nContent-Type: {kind_of(text)}; charset="utf-8"\n'
        f"Content-Transfer-Encoding: 8bit\nMIME-Version: 1.0\n\n{text.rstrip()}\n"
        for text in parts
    )
    head = f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"\nMIME-Version: 1.0\n\n'
    return f"{head}{document}--{_BOUNDARY}--\n"
