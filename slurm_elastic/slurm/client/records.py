"""Reads the records of Slurm's JSON answer while the command still writes it.

Ten thousand jobs are 41 MB of text, of which we use a tenth. So we never keep the whole answer in
memory. Slurm indents each level and breaks no line inside a string, so the indentation shows where
a record ends. An answer of another layout is kept until it is complete.
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

BATCH = 1 << 16  # bytes decoded at once; larger blocks take twice the time (measured)
_FIRST_KEY = re.compile(rb'\s*\{\r?\n([ \t]+)"')


class Records(Generic[Raw, Value]):
    """``take`` each piece of the answer, then ``close``. ``values`` has the values of list ``key``.

    Only the fields of ``record_type`` become objects. ValueError if the text is no JSON, and
    msgspec.ValidationError, AttributeError, KeyError or TypeError if it has another shape.
    """

    def __init__(self, key: str, record_type: type[Raw], read: Callable[[Raw], Value]) -> None:
        self._key, self._read = key.encode(), read
        self._list_decoder = msgspec.json.Decoder(list[record_type])  # type: ignore[valid-type]
        answer = defstruct("Answer", [(key, list[record_type]), ("errors", Any, None)])  # type: ignore[valid-type]
        self._answer_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(answer)
        self._buffer = bytearray()
        self._head = b""
        self._end: bytes | None = None
        self._next_cut_at = BATCH
        self.values: list[Value] = []

    def take(self, data: bytes) -> None:
        """Add the next piece of the text."""
        self._buffer += data
        if len(self._buffer) < self._next_cut_at:
            return
        if self._end is None:
            self._end = self._find_end()
        self._read_complete()
        self._next_cut_at = len(self._buffer) + BATCH

    def close(self) -> Any:  # noqa: ANN401 - whatever Slurm says
        """End the text, and return the answer's ``errors``."""
        # Head and rest form an answer of their own, with the last records and the errors.
        remainder = _decoded(self._answer_decoder, self._head + self._buffer)
        self._buffer.clear()
        self.values += map(self._read, getattr(remainder, self._key.decode()))
        return remainder.errors

    def _find_end(self) -> bytes:
        """Return the text that ends a record, or b"" for an unknown layout. Keep the text before
        the list.
        """
        first_key = _FIRST_KEY.match(self._buffer)
        if first_key is None:
            return b""
        indent = first_key[1]
        opening = re.compile(rb'\n%b"%b" ?: ?\[\r?\n([ \t]+)\{\r?\n' % (indent, self._key))
        list_start = opening.search(self._buffer)
        if list_start is None or len(list_start[1]) <= len(indent):
            return b""
        start = self._buffer.index(b"[", list_start.start()) + 1
        self._head = bytes(self._buffer[:start])
        end = b"\n" + list_start[1] + b"},"
        del self._buffer[:start]
        return end

    def _read_complete(self) -> None:
        """Read the complete records, except the last."""
        end_at = self._buffer.rfind(self._end) if self._end else -1
        if self._end and end_at >= 0:
            comma = end_at + len(self._end) - 1
            batch = b"[" + self._buffer[:comma] + b"]"
            del self._buffer[: comma + 1]
            self.values += map(self._read, cast("list[Raw]", _decoded(self._list_decoder, batch)))


def _decoded(decoder: msgspec.json.Decoder[Any], text: bytes) -> Any:  # noqa: ANN401 - as it says
    """Decode JSON, even if Slurm wrote it incorrectly."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:  # valid JSON of another shape; it is a ValueError as well
        raise
    # Python's json also accepts NaN, lone surrogates and bytes that are no UTF-8.
    except ValueError:
        return msgspec.convert(json.loads(text.decode(errors="replace")), decoder.type)
