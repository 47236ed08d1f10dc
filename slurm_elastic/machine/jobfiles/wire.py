"""Messages between the two ends.

A message is a line of JSON. The content of a file follows its message in blocks, each after its
length (4 bytes). Length 0 ends a content, and _ABORTED says that the sender could not read on.
_HOLE and a length (8 bytes) stand for a hole of a sparse file. An end gets holes only after a
message in which it says that it takes ``holes``: during an upgrade the other end may be older.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import struct
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

Message = dict[str, Any]
Block = bytes | int
"""A part of a file's content, or the length of a hole in it."""
SILENCE_S = 60
"""An end that hears nothing for so long gives up, because the other one may be gone."""
BEAT_S = 5.0
"""Seconds between two signs of life of an end that waits."""
_BLOCK = 1 << 20
_ABORTED, _HOLE = 0xFFFFFFFF, 0xFFFFFFFE
_MAX_PLACE = (1 << 63) - 1
"""In a file."""
_MAX_LINE = 4 << 20


class CopyError(Exception):
    """The copy has failed. ``final``: another try would fail, too. ``busy``: it only waited for
    another copy.
    """

    def __init__(self, reason: str, *, final: bool = False, busy: bool = False) -> None:
        super().__init__(reason)
        self.final, self.busy = final, busy


class UnreadableError(OSError):
    """The other end could not read a file to its end."""


class Channel:
    """The connection to the other end. ``takes_holes``: whether the other end knows holes."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._sent_at = time.monotonic()
        self.takes_holes = False

    def send(self, **message: Any) -> None:  # noqa: ANN401 - JSON
        """Send a message."""
        with _other_end():
            self._sink.write(json.dumps(message).encode() + b"\n")
            self._sink.flush()
        self._sent_at = time.monotonic()

    def receive(self) -> Message:
        """Return the next message that is no sign of life. CopyError if the other end has failed or
        gone.
        """
        while True:
            with _other_end():
                line = self._source.readline(_MAX_LINE)
            if not line.endswith(b"\n"):
                raise CopyError("the connection has ended")
            try:
                message = dict(json.loads(line))
            except ValueError:
                raise CopyError("the other end does not keep to the protocol") from None
            if "error" in message:
                raise CopyError(
                    str(message["error"]), final=bool(message.get("final")),
                    busy=bool(message.get("busy")),
                )  # fmt: skip
            self.takes_holes |= bool(message.get("holes"))
            if "beat" not in message:
                return message

    def beat(self) -> None:
        """Send a sign of life if nothing was sent for BEAT_S."""
        if time.monotonic() - self._sent_at >= BEAT_S:
            self.send(beat=True)

    def send_content(self, descriptor: int, *, sparse: bool = False) -> None:
        """Send the content of an open file from its place on. ``sparse``: its holes as holes, if
        the other end can take them.
        """
        for packed in _packed(descriptor, sparse=sparse and self.takes_holes):
            with _other_end():
                self._sink.write(packed)
                self._sink.flush()
        self._sent_at = time.monotonic()

    @contextlib.contextmanager
    def content(self) -> Iterator[Iterator[bytes]]:
        """Yield the blocks of a content. UnreadableError if the sender could not read on.

        If the context ends early, it skips the other blocks, so that the next message follows.
        """
        with self.sparse_content() as blocks:
            yield _without_holes(blocks)

    @contextlib.contextmanager
    def sparse_content(self) -> Iterator[Iterator[Block]]:
        """As ``content``, with holes."""
        blocks = self._blocks()
        try:
            yield blocks
        finally:
            with contextlib.suppress(OSError):
                for _ in blocks:
                    pass

    def _blocks(self) -> Iterator[Block]:
        while True:
            with _other_end():
                (length,) = struct.unpack(">I", self._exactly(4))
            if length == _ABORTED:
                raise UnreadableError(errno.EIO, "it could not be read to its end")
            if length == 0:
                return
            if length == _HOLE:
                with _other_end():
                    (length,) = struct.unpack(">Q", self._exactly(8))
                if length > _MAX_PLACE:
                    raise _protocol_error()
                yield length
                continue
            # Checked before the read: the other end must not choose how much memory we take.
            if length > _BLOCK:
                raise _protocol_error()
            with _other_end():
                block = self._exactly(length)
            yield block

    def _exactly(self, count: int) -> bytes:
        block = self._source.read(count)
        if len(block) < count:
            raise CopyError("the connection has ended")
        return block


def _protocol_error() -> CopyError:
    return CopyError("the other end does not keep to the protocol", final=True)


def _without_holes(blocks: Iterator[Block]) -> Iterator[bytes]:
    for block in blocks:
        if isinstance(block, int):
            raise _protocol_error()
        yield block


def _packed(descriptor: int, *, sparse: bool) -> Iterator[bytes]:
    """The content of a file as it is sent."""
    try:
        for block in _read(descriptor, sparse=sparse):
            if isinstance(block, int):
                yield struct.pack(">IQ", _HOLE, block)
            else:
                yield struct.pack(">I", len(block)) + block
    except OSError:
        # The length was not sent before, so a file that cannot be read to its end does not end the
        # connection.
        yield struct.pack(">I", _ABORTED)
    else:
        yield struct.pack(">I", 0)


def _read(descriptor: int, *, sparse: bool) -> Iterator[Block]:
    """Read a file from its place to its end."""
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    begin, end = place, _MAX_PLACE
    while True:
        if sparse:
            begin, end = _next_data(descriptor, place)
            os.lseek(descriptor, begin, os.SEEK_SET)
        if begin > place:
            yield begin - place
        place = begin
        while place < end and (block := os.read(descriptor, min(_BLOCK, end - place))):
            yield block
            place += len(block)
        if place < end:
            return  # the end of the file


def _next_data(descriptor: int, place: int) -> tuple[int, int]:
    """Where the next data of a file begin and end, from a place on."""
    try:
        begin = os.lseek(descriptor, place, os.SEEK_DATA)
        return begin, os.lseek(descriptor, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a hole up to the end of the file
            return max(os.fstat(descriptor).st_size, place), _MAX_PLACE
        if error.errno == errno.EINVAL:  # this file system knows no holes
            return place, _MAX_PLACE
        raise


@contextlib.contextmanager
def _other_end() -> Iterator[None]:
    """Bound a wait for the other end. Work with our own files is no silence of the other end, so no
    alarm may go off then.
    """
    signal.alarm(SILENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
