"""The user data of a machine: what it must know to find its node name, then other parts.

EC2 bounds user data at 16 KiB before base64, nova at 64 KiB less a byte after it. The same launch
must give the same bytes, or EC2 takes a repeated call for another one
(IdempotentParameterMismatch): nothing random, no time.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from slurm_elastic.errors import ConfigError
from slurm_elastic.providers.user_data import multipart, read_user_data


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
_NO_FACTS = "FACTS: Dict[str, str] = {}  # noqa: UP006\n"


def read_parts(path: str | None, cloud: str, joining: str, form: Form = EC2) -> tuple[str, ...]:
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


def compose(
    facts: Mapping[str, str], nodes: str, parts: tuple[str, ...], form: Form = EC2
) -> bytes:
    """A multipart document: first the program that tells the machine its node (aws_boothook),
    with ``facts`` and ``nodes``; then the other parts.

    A list of nodes that does not fit is left out: the machine's tags have it too.
    """
    whole = _document({**facts, "nodes": nodes}, parts, form)
    return whole if len(whole) <= form.most else _document(facts, parts, form)


def _document(facts: Mapping[str, str], parts: tuple[str, ...], form: Form) -> bytes:
    """Packed where it is long; cloud-init unpacks it by itself."""
    whole = multipart((_boothook(facts, form), *parts)).encode()
    return gzip.compress(whole, mtime=0) if len(whole) > form.most - form.ours else whole


def _boothook(facts: Mapping[str, str], form: Form) -> str:
    return f"#cloud-boothook\n#!/usr/bin/python3\n{program(facts, form)}"


def program(facts: Mapping[str, str], form: Form = EC2) -> str:
    """The program's text with its facts, and without what only its readers need."""
    source = Path(__file__).with_name(form.program).read_text(encoding="utf-8")
    _, _, code = source.partition('\n"""\n')
    return code.replace(_NO_FACTS, f"FACTS = {dict(facts)!r}\n")
