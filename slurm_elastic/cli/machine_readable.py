"""Output for programs on stdout: JSON, and comma-separated values for spreadsheets."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable

import msgspec

from slurm_elastic.cli.streams import in_a_line

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of a formula in spreadsheets, in their narrow and their wide form."""
_NUMBER = re.compile(r"[+-]?[\d.]+")


def as_json(document: object) -> str:
    """The document as one line of JSON, also if its text was not valid UTF-8 at its source."""
    try:
        return msgspec.json.encode(document).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(document))


def write_csv(rows: Iterable[Iterable[object]]) -> None:
    """Write comma-separated values to stdout, without control characters and formulas."""
    csv.writer(sys.stdout, lineterminator="\n").writerows(map(_cell, row) for row in rows)


def _cell(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would take for a formula."""
    if not isinstance(value, str):
        return value
    text = in_a_line(value)
    is_formula = text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def write_json(document: object) -> None:
    """Write the document to stdout as one line."""
    sys.stdout.write(as_json(document) + "\n")
    sys.stdout.flush()  # a reader that went away is noticed here, where ``main`` handles it
