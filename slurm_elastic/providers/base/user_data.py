"""The user data of a machine: a program that finds the machine's node name, followed by other parts
for cloud-init.

Every process on the machine and everybody who may view the machine in the cloud can read it, so it
never contains a secret. The same launch must give the same bytes, so nothing in it is random or
depends on the time: else EC2 takes a repeated call for a different one and refuses it
(IdempotentParameterMismatch).
"""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base import trust
from slurm_elastic.base.errors import ConfigError, reason_of
from slurm_elastic.providers.base import shortened

PROGRAM = "#!"
KINDS = {
    "#cloud-config": "text/cloud-config",
    "#cloud-config-archive": "text/cloud-config-archive",
    "#cloud-config-jsonp": "text/cloud-config-jsonp",
    "#cloud-boothook": "text/cloud-boothook",
    "#include": "text/x-include-url",
    "#include-once": "text/x-include-once-url",
    PROGRAM: "text/x-shellscript",
    "#part-handler": "text/part-handler",
    "## template: jinja": "text/jinja2",
}
"""The first line that a part may have, and its content type (cloud-init: user-data formats)."""
_BOUNDARY = "==slurm-elastic=="
_FACTS = """#!/bin/sh
umask 022
mkdir -p /run/slurm-elastic
(umask 077; cat > /run/slurm-elastic/.launch) <<'SLURM_ELASTIC_FACTS'
{lines}
SLURM_ELASTIC_FACTS
printf '%s\\n' {node} > /run/slurm-elastic/.node
mv /run/slurm-elastic/.launch /run/slurm-elastic/launch
mv /run/slurm-elastic/.node /run/slurm-elastic/node
"""
_NO_FACTS = "FACTS: Dict[str, str] = {}  # noqa: UP006\n"


def read_user_data(path: str | None, cloud: str) -> str:
    """The site's own file for a cloud's machines; empty without a ``path``.

    ConfigError as for ``read_part``, and if the file has no form that cloud-init knows.
    """
    if path is None:
        return ""
    # cloud-init ignores blank lines at the beginning, but "#!" must be the first two bytes.
    text = read_part(path, f"user_data of cloud {cloud!r}").lstrip()
    if text and not text.startswith(tuple(KINDS)):
        raise ConfigError(
            f"user_data of cloud {cloud!r}: {path} begins with none of cloud-init's "
            f"{', '.join(KINDS)}"
        )
    return text


def read_part(path: str, description: str) -> str:
    """Read a file that every machine will run as root.

    ConfigError if it cannot be read, or if other users than its owner may write it.
    """
    try:
        flaw = trust.flaw(path, trust.ours())
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{description} cannot be read: {reason_of(error)}") from error
    if flaw:
        raise ConfigError(f"{description}: {flaw}")
    return text


def kind_of(text: str) -> str:
    """The content type of a part, determined by its first line."""
    # The longest match counts: "#cloud-config-archive" also starts with "#cloud-config", and
    # cloud-init, which trusts the content type alone, would fail on a list in place of settings.
    return KINDS[max((start for start in KINDS if text.startswith(start)), key=len)]


def multipart(parts: Iterable[str]) -> str:
    """One MIME document with these parts, which cloud-init handles in this order.

    The same parts always give the same text, because some clouds compare a repeated launch with the
    first.
    """
    # Not Python's email package: its boundary is random.
    document = "".join(
        f'--{_BOUNDARY}\nContent-Type: {kind_of(text)}; charset="utf-8"\n'
        f"Content-Transfer-Encoding: 8bit\nMIME-Version: 1.0\n\n{text.rstrip()}\n"
        for text in parts
    )
    head = f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"\nMIME-Version: 1.0\n\n'
    return f"{head}{document}--{_BOUNDARY}--\n"


class Form(Struct, frozen=True):
    """The differences between clouds: the file of the program that finds the machine's node, the
    largest size of user data (bytes), how many of these bytes are reserved for our own part, and
    the name of the service that sets the limit.
    """

    program: Path
    max_bytes: int
    reserved_bytes: int
    limited_by: str


def read_parts(path: str | None, cloud: str, joining: str, form: Form) -> tuple[str, ...]:
    """The parts after our own one: ``joining`` and the site's file. ConfigError if the file cannot
    be used, or if both together are too long.
    """
    parts = tuple(filter(None, (joining, read_user_data(path, cloud))))
    size = len(_document({}, parts, form))
    if size > form.max_bytes - form.reserved_bytes:
        raise ConfigError(
            f"user_data of cloud {cloud!r}: {path or 'the text of join'} is {size} bytes when "
            f"packed; {form.limited_by} leaves room for {form.max_bytes - form.reserved_bytes}"
        )
    return parts


def compose(facts: Mapping[str, str], nodes: str, parts: tuple[str, ...], form: Form) -> bytes:
    """A multipart document: first the program that tells the machine its node, with ``facts`` and
    ``nodes``, followed by the other parts.

    A list of nodes that does not fit is left out, because the machine's tags have it too.
    """
    document = _document({**facts, "nodes": nodes}, parts, form)
    return document if len(document) <= form.max_bytes else _document(facts, parts, form)


def _document(facts: Mapping[str, str], parts: tuple[str, ...], form: Form) -> bytes:
    """The multipart document, compressed if it is long. cloud-init decompresses it itself."""
    boothook = f"#cloud-boothook\n#!/usr/bin/python3\n{program(facts, form)}"
    document = multipart((boothook, *parts)).encode()
    # gzip writes a time into its header by default; the same launch must give the same bytes.
    return (
        gzip.compress(document, mtime=0)
        if len(document) > form.max_bytes - form.reserved_bytes
        else document
    )


def program(facts: Mapping[str, str], form: Form) -> str:
    """The program's text with the facts filled in, and without what machines do not need."""
    source = form.program.read_text(encoding="utf-8")
    return shortened.python(source.replace(_NO_FACTS, f"FACTS = {dict(facts)!r}\n")) + "\n"


def facts_program(facts: Mapping[str, str]) -> str:
    """A shell program for a machine that gets its own facts, which include ``node``. It writes the
    same two files as ``program``, which is for machines that share one text.
    """
    lines = "\n".join(f"{key}={shlex.quote(value)}" for key, value in facts.items())
    return _FACTS.format(lines=lines, node=shlex.quote(facts["node"]))
