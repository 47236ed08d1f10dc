"""Read messages of protocol buffers: numbered fields, each with a wire type (protobuf.dev,
"Encoding").

Neither Debian's CRIU nor Python provides a library for them, and we need little. Unexpected data is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from .site import RequestRefused

Value = int | bytes
_WORD = (1 << 64) - 1


class Message:
    """One message. A missing field is 0, or empty."""

    def __init__(self, data: bytes) -> None:
        self.fields: dict[int, list[Value]] = {}
        for number, value, _, _ in fields(data, 0, len(data)):
            self.fields.setdefault(number, []).append(value)

    def one(self, field: int) -> Value | None:
        """Return the value of a field that comes once at most, or None. RequestRefused if it comes
        twice.
        """
        values = self.fields.get(field, [])
        if len(values) > 1:
            raise RequestRefused(f"an image with field {field} twice")
        return values[0] if values else None

    def number(self, field: int, missing: int = 0) -> int:
        """Return a number, or ``missing`` if there is no such field."""
        value = self.one(field)
        if isinstance(value, bytes):
            raise RequestRefused(f"an image whose field {field} is no number")
        return missing if value is None else value & _WORD

    def numbers(self, field: int) -> list[int]:
        """Return a repeated number, packed or not."""
        numbers: list[int] = []
        for value in self.fields.get(field, []):
            if isinstance(value, int):
                numbers.append(value)
                continue
            offset = 0
            while offset < len(value):
                number, offset = varint(value, offset)
                numbers.append(number)
        return numbers

    def messages(self, field: int) -> list[Message]:
        """Return the messages in a field."""
        messages = []
        for value in self.fields.get(field, []):
            if not isinstance(value, bytes):
                raise RequestRefused(f"an image whose field {field} is no message")
            messages.append(Message(value))
        return messages


def fields(data: bytes, offset: int, end: int) -> Iterator[tuple[int, Value, int, int]]:
    """Yield the fields of the message between two offsets: number, value, and the value's start and
    end.
    """
    while offset < end:
        key, offset = varint(data, offset)
        match key & 7:
            case 0:
                number, stop = varint(data, offset)
                yield key >> 3, number, offset, stop
                offset = stop
                continue
            case 1:
                size = 8
            case 2:
                size, offset = varint(data, offset)
            case 5:
                size = 4
            case kind:
                raise RequestRefused(f"an image with a field of unknown kind {kind}")
        if offset + size > end:
            raise RequestRefused("an image with a field that is cut off")
        yield key >> 3, data[offset : offset + size], offset, offset + size
        offset += size


def varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the number, and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(data):
            raise RequestRefused("an image with a number that is cut off")
        value |= (data[offset] & 0x7F) << shift
        offset += 1
        if data[offset - 1] < 0x80:
            return value, offset
    raise RequestRefused("an image with a number that has no end")
