"""What a program of ours needs of its standard streams, whoever started it, and how."""

from __future__ import annotations

import io
import json
import os
import re
import sys

import msgspec

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def prepare() -> None:
    """Have stdout and stderr be there and take any text. To be called before anything is opened.

    A stream that was closed (``>&-``) leads to /dev/null, as no file of ours must get its number.
    What a stream's encoding lacks is written as its number. ``COLUMNS=0``, as some
    terminals have it, means that the width is not known.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get("COLUMNS", "").strip("0") == "":
        os.environ.pop("COLUMNS", None)


def visible(text: str) -> str:
    """``text`` with the numbers of control characters: what was read rules no terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def write_json(document: object) -> None:
    """One line on stdout, also of text that was no UTF-8 where it came from."""
    try:
        text = msgspec.json.encode(document).decode()
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(document))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
