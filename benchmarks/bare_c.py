"""EASY backfill in plain C, compiled in the run that compares with it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).with_name("bare_easy.c")
BareEasy = Callable[["array[int]", "array[int]", "array[int]", "array[int]", int], "array[int]"]


def bare_easy_in_c() -> BareEasy | None:
    """Compile the loop. None if there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "bare_easy.so")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True)
        function = ctypes.CDLL(str(library)).bare_easy

    def starts(
        submit: array[int], run: array[int], limit: array[int], size: array[int], nodes: int
    ) -> array[int]:
        found = array("q", bytes(8 * len(submit)))
        columns = [_pointer(column) for column in (submit, run, limit, size)]
        number = ctypes.c_longlong
        function(number(len(submit)), *columns, number(nodes), _pointer(found))
        return found

    return starts


def _pointer(column: array[int]) -> ctypes.c_void_p:
    return ctypes.c_void_p(column.buffer_info()[0])
