"""The user data of a machine: what it must know to find its node name, then the site's own.

EC2 bounds user data at 16 KiB before base64, nova at 64 KiB (less a byte) after it. The same launch
must give the same bytes, or EC2 takes a repeated call for another one
(IdempotentParameterMismatch): nothing random, no time. Everything here can be
read by every process on the machine, so it holds no secret.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from slurm_elastic.errors import ConfigError


class Form(Struct, frozen=True):
    """What differs between clouds: the program's file, the bytes there may be and those of them
    that are kept for what we say ourselves, and who bounds them.
    """

    program: str
    most: int
    ours: int
    who: str


MAX_BYTES = 16384
EC2 = Form("aws_boothook.py", MAX_BYTES, 2048, "EC2")
NOVA = Form("openstack_boothook.py", 65535 // 4 * 3, 10240, "nova")
_BOUNDARY = "==slurm-elastic=="
_NO_FACTS = "FACTS: Dict[str, str] = {}  # noqa: UP006\n"
_KINDS = {
    "#cloud-config": "text/cloud-config",
    "#cloud-boothook": "text/cloud-boothook",
    "#include": "text/x-include-url",
    "#!": "text/x-shellscript",
    "#part-handler": "text/part-handler",
    "## template: jinja": "text/jinja2",
}


def read_user_data(path: str | None, cloud: str, form: Form = EC2) -> str:
    """The site's file; ConfigError where it cannot be read, is not cloud-init's, or may be written
    by others: every machine runs it as root.
    """
    if path is None:
        return ""
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"user_data of cloud {cloud!r} cannot be read: {error}") from error
    if mode & 0o022:
        raise ConfigError(
            f"user_data of cloud {cloud!r}: {path} may be written by others than its owner; "
            f"chmod go-w {path}"
        )
    if text and not any(text.startswith(start) for start in _KINDS):
        raise ConfigError(
            f"user_data of cloud {cloud!r}: {path} begins with none of cloud-init's "
            f"{', '.join(_KINDS)}"
        )
    size = len(_document({}, text, form))
    if size > form.most - form.ours:
        raise ConfigError(
            f"user_data of cloud {cloud!r}: {path} is {size} bytes when packed; "
            f"{form.who} leaves room for {form.most - form.ours}"
        )
    return text


def compose(facts: Mapping[str, str], nodes: str, site: str, form: Form = EC2) -> bytes:
    """A multipart document: first the program that tells the machine its node (aws_boothook), with
    ``facts`` and ``nodes``; then the site's part.

    A list of nodes that does not fit is left out: the machine's tags have it too.
    """
    whole = _document({**facts, "nodes": nodes}, site, form)
    return whole if len(whole) <= form.most else _document(facts, site, form)


def _document(facts: Mapping[str, str], site: str, form: Form) -> bytes:
    """Packed where it is long; cloud-init unpacks it by itself."""
    parts = [("text/cloud-boothook", _boothook(facts, form))]
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
    return gzip.compress(whole, mtime=0) if len(whole) > form.most - form.ours else whole


def _boothook(facts: Mapping[str, str], form: Form) -> str:
    return f"#cloud-boothook\n#!/usr/bin/python3\n{program(facts, form)}"


def program(facts: Mapping[str, str], form: Form = EC2) -> str:
    """The program's text with its facts, and without what only its readers need."""
    source = Path(__file__).with_name(form.program).read_text(encoding="utf-8")
    _, _, code = source.partition('\n"""\n')
    return code.replace(_NO_FACTS, f"FACTS = {dict(facts)!r}\n")
