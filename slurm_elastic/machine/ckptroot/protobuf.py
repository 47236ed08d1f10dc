"""Reads messages of protocol buffers: numbered fields, each with a wire type (protobuf.dev,
"Encoding").

Neither Debian's CRIU nor Python brings a library for them, and we need little. Whatever does not
read as expected is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from .site import Refused

Value = int | bytes
_WORD = (1 << 64) - 1


class Message:
    """One message; a missing field is 0, or empty."""

    def __init__(self, data: bytes) -> None:
        self.fields: dict[int, list[Value]] = {}
        for number, value, _, _ in fields(data, 0, len(data)):
            self.fields.setdefault(number, []).append(value)

    def one(self, field: int) -> Value | None:
        """The value of a field that comes once at most."""
        values = self.fields.get(field, [])
        if len(values) > 1:
            raise Refused(f"an image with field {field} twice")
        return values[0] if values else None

    def number(self, field: int, missing: int = 0) -> int:
        """A number, or ``missing`` if the field is missing."""
        value = self.one(field)
        if isinstance(value, bytes):
            raise Refused(f"an image whose field {field} is no number")
        return missing if value is None else value & _WORD

    def numbers(self, field: int) -> list[int]:
        """A repeated number, packed or not."""
        found: list[int] = []
        for value in self.fields.get(field, []):
            if isinstance(value, int):
                found.append(value)
                continue
            at = 0
            while at < len(value):
                one, at = varint(value, at)
                found.append(one)
        return found

    def messages(self, field: int) -> list[Message]:
        """The messages in a field."""
        found = []
        for value in self.fields.get(field, []):
            if not isinstance(value, bytes):
                raise Refused(f"an image whose field {field} is no message")
            found.append(Message(value))
        return found


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, Value, int, int]]:
    """The fields of the message between two places: number, value, and where the value begins and
    ends.
    """
    while at < end:
        key, at = varint(data, at)
        match key & 7:
            case 0:
                number, stop = varint(data, at)
                yield key >> 3, number, at, stop
                at = stop
                continue
            case 1:
                size = 8
            case 2:
                size, at = varint(data, at)
            case 5:
                size = 4
            case kind:
                raise Refused(f"an image with a field of unknown kind {kind}")
        if at + size > end:
            raise Refused("an image with a field that is cut off")
        yield key >> 3, data[at : at + size], at, at + size
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where the next begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Refused("an image with a number that is cut off")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise Refused("an image with a number that has no end")
