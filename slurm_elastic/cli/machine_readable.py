"""What programs read of ours on stdout: JSON, and comma-separated values for spreadsheets."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable

import msgspec

from slurm_elastic.cli.streams import in_a_line

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Beginnings of what spreadsheets calculate, as narrow and as wide characters."""
_NUMBER = re.compile(r"[+-]?[\d.]+")


def as_json(document: object) -> str:
    """One line, also of text that was no UTF-8 where it came from."""
    try:
        return msgspec.json.encode(document).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(document))


def write_csv(rows: Iterable[Iterable[object]]) -> None:
    """Comma-separated values on stdout, of which none rules a terminal or a spreadsheet."""
    csv.writer(sys.stdout, lineterminator="\n").writerows(map(_cell, row) for row in rows)


def _cell(value: object) -> object:
    """Text that a spreadsheet would take for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    text = in_a_line(value)
    is_formula = text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def write_json(document: object) -> None:
    """The document in one line on stdout."""
    sys.stdout.write(as_json(document) + "\n")
    sys.stdout.flush()
