"""What a program of ours needs of its standard streams, whoever started it, and how."""

from __future__ import annotations

import io
import os
import sys


def prepare() -> None:
    """Have stdout and stderr be there and take any text. To be called before anything is opened.

    A stream that was closed (``>&-``) leads to /dev/null, as no file of ours must get its number.
    What a stream's encoding lacks is written as ``\\xe9`` or ``\\u2026``. ``COLUMNS=0``, as some
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
