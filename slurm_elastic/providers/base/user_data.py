"""The user data of a machine: how it finds its node name, then other parts for cloud-init.

All of it can be read by every process on the machine, and by whoever may look at the machine in the
cloud, so it never holds a secret. The same launch must give the same bytes, or EC2 takes a repeated
call for another one (IdempotentParameterMismatch): nothing random, no time.
"""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base import trust
from slurm_elastic.base.errors import ConfigError, why

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
"""The first line that a part may have, and its content type (cloud-init, user-data formats)."""
_BOUNDARY = "==slurm-elastic=="
_FACTS = """#!/bin/sh
umask 022
mkdir -p /run/slurm-elastic
cat > /run/slurm-elastic/.launch <<'SLURM_ELASTIC_FACTS'
{lines}
SLURM_ELASTIC_FACTS
printf '%s\\n' {node} > /run/slurm-elastic/.node
mv /run/slurm-elastic/.launch /run/slurm-elastic/launch
mv /run/slurm-elastic/.node /run/slurm-elastic/node
"""
_NO_FACTS = "FACTS: Dict[str, str] = {}  # noqa: UP006\n"


def read_user_data(path: str | None, cloud: str) -> str:
    """The site's file for a cloud's machines; ConfigError as ``read_part``, and where it is not
    cloud-init's.
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


def read_part(path: str, what: str) -> str:
    """A file that every machine runs as root; ConfigError where it cannot be read, or others than
    its owner may write it.
    """
    try:
        wrong = trust.flaw(path, trust.ours())
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} cannot be read: {why(error)}") from error
    if wrong:
        raise ConfigError(f"{what}: {wrong}")
    return text


def kind_of(text: str) -> str:
    """The content type of a part, by its beginning."""
    # cloud-init goes by the type alone, and an archive is a list where settings are expected.
    return KINDS[max((start for start in KINDS if text.startswith(start)), key=len)]


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


class Form(Struct, frozen=True):
    """The parts that differ between clouds: the file of the program that tells a machine its node,
    the bytes there may be and those of them that are kept for what we say ourselves, and who bounds
    them.
    """

    program: Path
    most: int
    ours: int
    who: str


def read_parts(path: str | None, cloud: str, joining: str, form: Form) -> tuple[str, ...]:
    """The parts after our first: ``joining`` and the site's file; ConfigError where that cannot be
    used or both are too long.
    """
    parts = tuple(filter(None, (joining, read_user_data(path, cloud))))
    size = len(_document({}, parts, form))
    if size > form.most - form.ours:
        raise ConfigError(
            f"user_data of cloud {cloud!r}: {path or 'the text of join'} is {size} bytes when "
            f"packed; {form.who} leaves room for {form.most - form.ours}"
        )
    return parts


def compose(facts: Mapping[str, str], nodes: str, parts: tuple[str, ...], form: Form) -> bytes:
    """A multipart document: first the program that tells the machine its node, with
    ``facts`` and ``nodes``; then the other parts.

    A list of nodes that does not fit is left out: the machine's tags have it too.
    """
    whole = _document({**facts, "nodes": nodes}, parts, form)
    return whole if len(whole) <= form.most else _document(facts, parts, form)


def _document(facts: Mapping[str, str], parts: tuple[str, ...], form: Form) -> bytes:
    """Packed where it is long; cloud-init unpacks it by itself."""
    boothook = f"#cloud-boothook\n#!/usr/bin/python3\n{program(facts, form)}"
    whole = multipart((boothook, *parts)).encode()
    # Without its time: the same launch must give the same bytes.
    return gzip.compress(whole, mtime=0) if len(whole) > form.most - form.ours else whole


def program(facts: Mapping[str, str], form: Form) -> str:
    """The program's text with its facts, and without what only its readers need."""
    source = form.program.read_text(encoding="utf-8")
    _, _, code = source.partition('\n"""\n')
    return code.replace(_NO_FACTS, f"FACTS = {dict(facts)!r}\n")


def facts_program(facts: Mapping[str, str]) -> str:
    """A shell program for a machine that has its facts, ``node`` among them, for itself alone: it
    writes the two files that ``program`` writes where many share one text.
    """
    lines = "\n".join(f"{key}={shlex.quote(value)}" for key, value in facts.items())
    return _FACTS.format(lines=lines, node=shlex.quote(facts["node"]))
