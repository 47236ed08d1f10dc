"""The user data of a machine: what it must know to find its node name, then the site's own.

EC2 bounds user data at 16 KiB before base64. The same launch must give the same bytes, or EC2
takes a repeated call for another one (IdempotentParameterMismatch): nothing random, no time.
Everything here can be read by every process on the machine, so it holds no secret.
"""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Mapping
from pathlib import Path

from slurm_elastic.errors import ConfigError

MAX_BYTES = 16384
_BOUNDARY = "==slurm-elastic=="
_KINDS = {
    "#cloud-config": "text/cloud-config",
    "#cloud-boothook": "text/cloud-boothook",
    "#include": "text/x-include-url",
    "#!": "text/x-shellscript",
    "#part-handler": "text/part-handler",
    "## template: jinja": "text/jinja2",
}


def read_user_data(path: str | None, cloud: str) -> str:
    """The site's file; ConfigError where it cannot be read or is not cloud-init's."""
    if path is None:
        return ""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"user_data of cloud {cloud!r} cannot be read: {error}") from error
    if text and not any(text.startswith(start) for start in _KINDS):
        raise ConfigError(
            f"user_data of cloud {cloud!r}: {path} begins with none of cloud-init's "
            f"{', '.join(_KINDS)}"
        )
    return text


def compose(facts: Mapping[str, str], site: str, cloud: str) -> str:
    """Base64 of a multipart document: ``/run/slurm-elastic/launch`` with ``facts`` as
    ``key=value`` lines readable by sh, written before all else; then the site's part.
    """
    parts = [("text/cloud-boothook", _boothook(facts))]
    if site:
        parts.append((next(k for start, k in _KINDS.items() if site.startswith(start)), site))
    document = "".join(
        f'--{_BOUNDARY}\nContent-Type: {kind}; charset="utf-8"\n'
        f"Content-Transfer-Encoding: 8bit\nMIME-Version: 1.0\n\n{text.rstrip()}\n"
        for kind, text in parts
    )
    whole = (
        f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"\nMIME-Version: 1.0\n\n'
        f"{document}--{_BOUNDARY}--\n"
    ).encode()
    if len(whole) > MAX_BYTES:
        # cloud-init unpacks it by itself.
        whole = gzip.compress(whole, mtime=0)
    if len(whole) > MAX_BYTES:
        raise ConfigError(
            f"user_data of cloud {cloud!r} makes {len(whole)} bytes packed; "
            f"EC2 takes {MAX_BYTES} at most"
        )
    return base64.b64encode(whole).decode("ascii")


def _boothook(facts: Mapping[str, str]) -> str:
    lines = "\n".join(f"{key}={shlex.quote(value)}" for key, value in facts.items())
    return (
        "#cloud-boothook\n#!/bin/sh\nmkdir -p /run/slurm-elastic\n"
        f"cat > /run/slurm-elastic/launch <<'LAUNCH'\n{lines}\nLAUNCH\n"
    )
