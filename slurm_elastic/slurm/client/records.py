"""The records of a JSON answer of Slurm, read while the command still writes it.

Ten thousand jobs are 41 MB of text, of which we use a tenth. So the answer never is in memory as
a whole: what Slurm prints has one level of indentation a level of depth and no line break inside
a string, which tells where a record ends. An answer of another layout is kept until it is
complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct, defstruct

Raw = TypeVar("Raw", bound=Struct)
Value = TypeVar("Value")

BATCH = 1 << 16  # bytes decoded at once: larger blocks take twice the time (measured)
_FIRST_KEY = re.compile(rb'\s*\{\r?\n([ \t]+)"')


class Records(Generic[Raw, Value]):
    """``take`` what comes, then ``close``; ``found`` has the values of the list ``key``.

    Only the fields of ``raw`` are made objects. ValueError where it is no JSON, and
    msgspec.ValidationError, AttributeError, KeyError or TypeError where it has another shape.
    """

    def __init__(self, key: str, raw: type[Raw], read: Callable[[Raw], Value]) -> None:
        self._key, self._read = key.encode(), read
        self._list = msgspec.json.Decoder(list[raw])  # type: ignore[valid-type]
        answer = defstruct("Answer", [(key, list[raw]), ("errors", Any, None)])  # type: ignore[valid-type]
        self._answer: msgspec.json.Decoder[Any] = msgspec.json.Decoder(answer)
        self._buffer = bytearray()
        self._head = b""
        self._end: bytes | None = None
        self._due = BATCH
        self.found: list[Value] = []

    def take(self, data: bytes) -> None:
        """The next part of the text."""
        self._buffer += data
        if len(self._buffer) < self._due:
            return
        if self._end is None:
            self._end = self._find_end()
        self._cut()
        self._due = len(self._buffer) + BATCH

    def close(self) -> Any:  # noqa: ANN401 - whatever Slurm says
        """The end of the text: what the answer has as ``errors``."""
        # Head and rest are an answer by themselves: the records that are left, and the errors.
        rest = _decoded(self._answer, self._head + self._buffer)
        self._buffer.clear()
        self.found += map(self._read, getattr(rest, self._key.decode()))
        return rest.errors

    def _find_end(self) -> bytes:
        """The text between two records (empty: unknown layout); the head is before the first."""
        first = _FIRST_KEY.match(self._buffer)
        if first is None:
            return b""
        indent = first[1]
        opening = re.compile(rb'\n%b"%b" ?: ?\[\r?\n([ \t]+)\{\r?\n' % (indent, self._key))
        found = opening.search(self._buffer)
        if found is None or len(found[1]) <= len(indent):
            return b""
        start = self._buffer.index(b"[", found.start()) + 1
        self._head = bytes(self._buffer[:start])
        end = b"\n" + found[1] + b"},"
        del self._buffer[:start]
        return end

    def _cut(self) -> None:
        """Read the records that are complete and not the last."""
        at = self._buffer.rfind(self._end) if self._end else -1
        if self._end and at >= 0:
            comma = at + len(self._end) - 1
            batch = b"[" + self._buffer[:comma] + b"]"
            del self._buffer[: comma + 1]
            self.found += map(self._read, cast("list[Raw]", _decoded(self._list, batch)))


def _decoded(decoder: msgspec.json.Decoder[Any], text: bytes) -> Any:  # noqa: ANN401 - as it says
    """JSON as it should be, or as Slurm may write it."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise
    # Python's json also takes NaN, half characters and what is no UTF-8.
    except ValueError:
        return msgspec.convert(json.loads(text.decode(errors="replace")), decoder.type)
