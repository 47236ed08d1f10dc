"""Messages between the two ends.

A message is a line of JSON. The content of a file follows its message in blocks, each after its
length (4 bytes). Length 0 ends a content, and _ABORTED says that the sender could not read on.
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
SILENCE_S = 60
"""An end that hears nothing for so long gives up, because the other one may be gone."""
BEAT_S = 5.0
"""Seconds between two signs of life of an end that waits."""
_BLOCK = 1 << 20
_ABORTED = 0xFFFFFFFF
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
    """The connection to the other end."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._sent_at = time.monotonic()

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
            if "beat" not in message:
                return message

    def beat(self) -> None:
        """Send a sign of life if nothing was sent for BEAT_S."""
        if time.monotonic() - self._sent_at >= BEAT_S:
            self.send(beat=True)

    def send_content(self, descriptor: int) -> None:
        """Send the content of an open file."""
        length = 1
        while length:
            try:
                block = os.read(descriptor, _BLOCK)
                length = len(block)
                packed = struct.pack(">I", length) + block
            except OSError:
                # The length was not sent before, so a file that cannot be read to its end does not
                # end the connection.
                length, packed = 0, struct.pack(">I", _ABORTED)
            with _other_end():
                self._sink.write(packed)
                self._sink.flush()
        self._sent_at = time.monotonic()

    @contextlib.contextmanager
    def content(self) -> Iterator[Iterator[bytes]]:
        """Yield the blocks of a content. UnreadableError if the sender could not read on.

        If the context ends early, it skips the other blocks, so that the next message follows.
        """
        blocks = self._blocks()
        try:
            yield blocks
        finally:
            with contextlib.suppress(OSError):
                for _ in blocks:
                    pass

    def _blocks(self) -> Iterator[bytes]:
        while True:
            with _other_end():
                (length,) = struct.unpack(">I", self._exactly(4))
            if length == _ABORTED:
                raise UnreadableError(errno.EIO, "it could not be read to its end")
            if length == 0:
                return
            # Checked before the read: the other end must not choose how much memory we take.
            if length > _BLOCK:
                raise CopyError("the other end does not keep to the protocol", final=True)
            with _other_end():
                block = self._exactly(length)
            yield block

    def _exactly(self, count: int) -> bytes:
        block = self._source.read(count)
        if len(block) < count:
            raise CopyError("the connection has ended")
        return block


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
