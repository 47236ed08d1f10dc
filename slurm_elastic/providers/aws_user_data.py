"""The user data of an EC2 machine: what it must know to find its node name, then other parts.

EC2 bounds user data at 16 KiB before base64. The same launch must give the same bytes, or EC2
takes a repeated call for another one (IdempotentParameterMismatch): nothing random, no time.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

from slurm_elastic.errors import ConfigError
from slurm_elastic.providers.user_data import multipart, read_user_data

MAX_BYTES = 16384
_OURS = 2048
"""Bytes of it that are kept for what we say ourselves."""
_NO_FACTS = "FACTS: Dict[str, str] = {}  # noqa: UP006\n"


def read_parts(path: str | None, cloud: str, joining: str) -> tuple[str, ...]:
    """The parts after our first: ``joining`` and the site's file; ConfigError where that cannot be
    used or both are too long.
    """
    parts = tuple(filter(None, (joining, read_user_data(path, cloud))))
    size = len(_document({}, parts))
    if size > MAX_BYTES - _OURS:
        raise ConfigError(
            f"user_data of cloud {cloud!r}: {path or 'the text of join'} is {size} bytes when "
            f"packed; EC2 leaves room for {MAX_BYTES - _OURS}"
        )
    return parts


def compose(facts: Mapping[str, str], nodes: str, parts: tuple[str, ...]) -> bytes:
    """A multipart document: first the program that tells the machine its node (aws_boothook),
    with ``facts`` and ``nodes``; then the other parts.

    A list of nodes that does not fit is left out: the machine's tags have it too.
    """
    whole = _document({**facts, "nodes": nodes}, parts)
    return whole if len(whole) <= MAX_BYTES else _document(facts, parts)


def _document(facts: Mapping[str, str], parts: tuple[str, ...]) -> bytes:
    """Packed where it is long; cloud-init unpacks it by itself."""
    whole = multipart((_boothook(facts), *parts)).encode()
    return gzip.compress(whole, mtime=0) if len(whole) > MAX_BYTES - _OURS else whole


def _boothook(facts: Mapping[str, str]) -> str:
    return f"#cloud-boothook\n#!/usr/bin/python3\n{program(facts)}"


def program(facts: Mapping[str, str]) -> str:
    """The text of ``aws_boothook`` with its facts, and without what only its readers need."""
    source = Path(__file__).with_name("aws_boothook.py").read_text(encoding="utf-8")
    _, _, code = source.partition('\n"""\n')
    return code.replace(_NO_FACTS, f"FACTS = {dict(facts)!r}\n")
