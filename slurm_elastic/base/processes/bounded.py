"""Bounds on answers of other programs: a number of bytes and a time for the whole exchange.

A socket's time-out restarts with each byte, and does not count the bytes. An endless slow answer
would take a thread, and an endless fast answer would take all memory.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from slurm_elastic.base.processes import asking

ANSWER = 128 << 20
"""Bytes of a cloud's answer. The longest kind of list has some 80 MB for ten thousand machines."""
_CHUNK = 1 << 16


class Exceeded(OSError):  # noqa: N818 - read as a word
    """The answer is longer than any valid answer."""


class ReadBudget:
    """How many bytes may still be read, and until when: ``max_bytes``, ``seconds`` from now.

    Each exchange begins with a new budget. OSError if this process may send no requests
    (``base.asking``).
    """

    def __init__(
        self, max_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        asking.check_gate()
        self._clock = clock
        self._until = clock() + seconds
        self._max_bytes = max_bytes
        self._left = max_bytes

    def take(self, count: int) -> None:
        """Count received bytes. Exceeded if they are too many, TimeoutError if the time is over."""
        self._left -= count
        if self._left < 0:
            raise Exceeded(f"more than {self._max_bytes} bytes came")
        self.remaining_s()

    def remaining_s(self) -> float:
        """The remaining seconds. TimeoutError if the time is over."""
        remaining_s = self._until - self._clock()
        if remaining_s <= 0:
            raise TimeoutError("the answer took too long")
        return remaining_s


class BoundedSocket:
    """A connected socket for paramiko, whose own time-outs are for single steps.

    When its budget is used up, its reader gets the end of the stream and ``send`` fails.
    ``failure`` then has the reason.
    """

    def __init__(self, inner: socket.socket, budget: ReadBudget) -> None:
        self._inner = inner
        self._budget = budget
        self.failure = ""

    def renew(self, budget: ReadBudget) -> None:
        """Set the budget for the next exchange on the same connection."""
        self._budget = budget

    def rest(self, max_bytes: int) -> None:
        """Allow ``max_bytes`` until the next exchange, without a limit of time."""
        self._budget = ReadBudget(max_bytes, math.inf)

    def recv(self, count: int) -> bytes:
        """Read as a socket does. When the budget is used up, return b"", which means the end."""
        try:
            self._budget.remaining_s()
            data = self._inner.recv(count)
            self._budget.take(len(data))
        except (Exceeded, TimeoutError) as error:
            if isinstance(error, TimeoutError) and not self._is_over():
                raise  # the socket's own time-out: paramiko reads again
            self.failure = str(error)
            return b""
        return data

    def send(self, data: bytes) -> int:
        """Send as a socket does. TimeoutError when the budget is used up."""
        self._budget.remaining_s()
        return self._inner.send(data)

    def _is_over(self) -> bool:
        try:
            self._budget.remaining_s()
        except TimeoutError:
            return True
        return False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the socket's own
        return getattr(self._inner, name)


def connect(address: str, port: int, budget: ReadBudget) -> BoundedSocket:
    """Open a TCP connection within the budget."""
    return BoundedSocket(socket.create_connection((address, port), budget.remaining_s()), budget)


def exchange(inner: socket.socket, line: bytes, budget: ReadBudget) -> bytes:
    """Send one line and return the line that answers it, without its newline."""
    inner.settimeout(budget.remaining_s())
    # Checked again, because the process may have stood still while it connected.
    asking.check_gate()
    # A server that refuses us may have closed the connection already; its answer has the reason.
    with contextlib.suppress(BrokenPipeError):
        inner.sendall(line + b"\n")
    return line_of(inner, budget)


def line_of(inner: socket.socket, budget: ReadBudget) -> bytes:
    """Return the next line without its newline. If the connection ends first, return the bytes
    before its end.
    """
    chunks: list[bytes] = []
    while True:
        inner.settimeout(budget.remaining_s())
        chunk = inner.recv(65536)
        budget.take(len(chunk))
        chunks.append(chunk)
        if not chunk or b"\n" in chunk:
            return b"".join(chunks).partition(b"\n")[0]


def pieces(body: Any, budget: ReadBudget, **read: Any) -> Iterator[bytes]:  # noqa: ANN401 - urllib3's
    """The body of an answer in the pieces in which it arrives.

    ``read1`` returns the available bytes and does not wait for a full chunk. The file of an SSH
    channel has no ``read1``, so each of its chunks is waited for.
    """
    read_chunk = body.read1 if hasattr(_file_of(body), "read1") else body.read
    while chunk := read_chunk(_CHUNK, **read):
        budget.take(len(chunk))
        yield chunk


def _file_of(body: Any) -> Any:  # noqa: ANN401 - urllib3's, and http.client's below it
    """The file that a body is finally read from, as far as the attributes show it."""
    below = getattr(body, "_fp", body)
    return getattr(below, "fp", None) or below


def bound_boto(client: Any, seconds: float, max_bytes: int = ANSWER) -> None:  # noqa: ANN401
    """Bound each whole answer of a boto3 client by ``seconds`` and ``max_bytes``. botocore's own
    time-out is for one read.
    """
    # Through a private attribute. botocore's one public way to come between a request and its
    # answer is the event before-send. Its handler must send with a session of its own, and must
    # find the client's proxies, certificates and pool itself. Other events fire only after the body
    # has been read, however slowly it came.
    client._endpoint.http_session = _BoundedHttp(client._endpoint.http_session, seconds, max_bytes)


class _BoundedHttp:
    """Replaces botocore's HTTP session. Everything except ``send`` passes through to it."""

    def __init__(self, inner: Any, seconds: float, max_bytes: int) -> None:  # noqa: ANN401
        self._inner, self._seconds, self._max_bytes = inner, seconds, max_bytes

    def send(self, request: Any) -> Any:  # noqa: ANN401
        """Return the whole answer, or raise botocore's own error for an answer that is cut off."""
        from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError
        from urllib3.exceptions import HTTPError, ProtocolError
        from urllib3.exceptions import TimeoutError as PoolTimeoutError

        budget = ReadBudget(self._max_bytes, self._seconds)
        request.stream_output = True
        response = self._inner.send(request)
        try:
            response._content = b"".join(pieces(response.raw, budget))
        except (TimeoutError, PoolTimeoutError) as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
        except ProtocolError as error:
            raise ConnectionClosedError(
                error=error, request=request, endpoint_url=request.url
            ) from error
        except (OSError, HTTPError) as error:
            raise HTTPClientError(error=error) from error
        finally:
            if response._content is None:
                response.raw.close()
        return response

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner, name)
