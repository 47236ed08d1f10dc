"""Reads a job history of a public archive, in the format that its content shows."""

from __future__ import annotations

import sys
import zlib
from enum import StrEnum
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.simulate.histories import gwf, swf
from slurm_elastic.simulate.histories.swf import BYTE_ORDER_MARK, History, opened

HEAD_BYTES = 1 << 16
"""The begin of a file, which shows its format. Comments of GWF files may be long."""


class Format(StrEnum):
    """The format of a history: the Standard Workload Format, or the Grid Workload Format."""

    SWF = "swf"
    GWF = "gwf"


def load(path: Path, max_jobs: int | None = None, form: Format | None = None) -> History:
    """Read the first ``max_jobs`` jobs of ``path`` (``-``: standard input). ``form``: None finds it
    out. Raises ConfigError.
    """
    if form is None:
        _refuse_unread_forms(path)
    if (form or format_of(path)) is Format.GWF:
        return gwf.load(path, max_jobs)
    return swf.load(path, max_jobs)


def format_of(path: Path) -> Format:
    """Return the format that the first lines show; SWF if the file cannot be read."""
    return Format.GWF if gwf.is_of_gwf(_head(path)) else Format.SWF


def _refuse_unread_forms(path: Path) -> None:
    """ConfigError for a history with jobs whose form nothing here reads."""
    head = _head(path)
    if head.startswith("PK\x03\x04"):
        raise ConfigError(f"workload {path} is a ZIP archive: unpack it, and name the file in it")
    lines = (line.strip() for line in head.splitlines())
    names = next((line for line in lines if line and line[0] not in "#;"), "").split(",")
    if len(names) > 2 and all(name.strip().isidentifier() for name in names):
        raise ConfigError(
            f"workload {path} has named columns between commas ({', '.join(names[:3])}, ...):"
            " this form, which workflows have in the Grid Workloads Archive, is not read; expected"
            " SWF, GWF with a job in each line, or sacct's output"
        )


def _head(path: Path) -> str:
    if str(path) == "-":
        # Only looked at, so that the reader still gets the lines.
        head = getattr(sys.stdin.buffer, "peek", lambda _: b"")(HEAD_BYTES)
        return head.decode(errors="replace").removeprefix(BYTE_ORDER_MARK)
    try:
        with opened(path) as file:
            return file.read(HEAD_BYTES).removeprefix(BYTE_ORDER_MARK)
    except (OSError, EOFError, zlib.error):
        return ""
