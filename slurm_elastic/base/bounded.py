"""Bounds on what is read of others: so many bytes, until such a time, over a whole exchange.

A time-out of a read starts anew with each byte, and none counts how many came: whoever answers
slowly for ever, or at full speed for ever, would take a thread, or all memory.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from slurm_elastic.base import asking

ANSWER = 128 << 20
"""Bytes of a cloud's answer: a list of ten thousand machines has some 80 MB where it is longest."""
_CHUNK = 1 << 16


class Exceeded(OSError):  # noqa: N818 - read as a word
    """More came than any sound answer has."""


class Budget:
    """How much may still be read, and until when; ``seconds`` from now, ``most`` bytes. Each
    exchange begins with one: OSError where there may be none (``base.asking``).
    """

    def __init__(
        self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        asking.require()
        self._clock = clock
        self._until = clock() + seconds
        self._most = most
        self._left = most

    def take(self, count: int) -> None:
        """So many bytes came: Exceeded above the bound, TimeoutError after the time."""
        self._left -= count
        if self._left < 0:
            raise Exceeded(f"more than {self._most} bytes came")
        self.left()

    def left(self) -> float:
        """Seconds that are left; TimeoutError where none are."""
        left = self._until - self._clock()
        if left <= 0:
            raise TimeoutError("the answer took too long")
        return left


class BoundedSocket:
    """A connected socket for paramiko, whose own time-outs are for single steps. Over its budget it
    is at its end for whoever reads, and takes nothing more to send; ``why`` says so then.
    """

    def __init__(self, inner: socket.socket, budget: Budget) -> None:
        self._inner = inner
        self._budget = budget
        self.why = ""

    def renew(self, budget: Budget) -> None:
        """For the next exchange on the same connection."""
        self._budget = budget

    def rest(self, most: int) -> None:
        """Between two exchanges it may stay open for as long as it likes, not say much."""
        self._budget = Budget(most, math.inf)

    def recv(self, count: int) -> bytes:
        """As a socket's; empty, which is its end, over the budget."""
        try:
            self._budget.left()
            data = self._inner.recv(count)
            self._budget.take(len(data))
        except (Exceeded, TimeoutError) as error:
            if isinstance(error, TimeoutError) and not self._is_over():
                raise  # only this one read: paramiko asks again
            self.why = str(error)
            return b""
        return data

    def send(self, data: bytes) -> int:
        """As a socket's; OSError over the budget."""
        self._budget.left()
        return self._inner.send(data)

    def _is_over(self) -> bool:
        try:
            self._budget.left()
        except TimeoutError:
            return True
        return False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the socket's own
        return getattr(self._inner, name)


def connect(address: str, port: int, budget: Budget) -> BoundedSocket:
    """A TCP connection inside the budget."""
    return BoundedSocket(socket.create_connection((address, port), budget.left()), budget)


def exchange(inner: socket.socket, line: bytes, budget: Budget) -> bytes:
    """Send one line and read the one that answers it, without its end."""
    inner.settimeout(budget.left())
    asking.require()  # anew: there is a connection since the budget began
    with contextlib.suppress(BrokenPipeError):  # who is turned away may be told why
        inner.sendall(line + b"\n")
    return line_of(inner, budget)


def line_of(inner: socket.socket, budget: Budget) -> bytes:
    """The next line, without its end; what came where there is no more."""
    pieces: list[bytes] = []
    while True:
        inner.settimeout(budget.left())
        piece = inner.recv(65536)
        budget.take(len(piece))
        pieces.append(piece)
        if not piece or b"\n" in piece:
            return b"".join(pieces).partition(b"\n")[0]


def pieces(raw: Any, budget: Budget, **read: Any) -> Iterator[bytes]:  # noqa: ANN401 - urllib3's
    """The body of an answer, as it comes: none is waited for once there is one. An SSH channel's
    file knows no such reading; of that each piece is waited for.
    """
    one = raw.read1 if hasattr(_file_of(raw), "read1") else raw.read
    while piece := one(_CHUNK, **read):
        budget.take(len(piece))
        yield piece


def _file_of(raw: Any) -> Any:  # noqa: ANN401 - urllib3's, and http.client's below it
    """The file that a body is read from in the end, as far as it can be told."""
    below = getattr(raw, "_fp", raw)
    return getattr(below, "fp", None) or below


def bound_boto(client: Any, seconds: float, most: int = ANSWER) -> None:  # noqa: ANN401 - boto3's
    """Have each answer of a boto3 client whole within so many seconds and bytes: botocore's own
    time-out is for one read.
    """
    # By its insides: botocore's one public way between a request and its answer, the event
    # before-send, has to send by a session of its own, with the client's proxies, certificates and
    # pool found out anew; its other events come once a body is read, however slowly it came.
    client._endpoint.http_session = _BoundedHttp(client._endpoint.http_session, seconds, most)


class _BoundedHttp:
    """In place of botocore's HTTP session. All but ``send`` is that one's."""

    def __init__(self, inner: Any, seconds: float, most: int) -> None:  # noqa: ANN401
        self._inner, self._seconds, self._most = inner, seconds, most

    def send(self, request: Any) -> Any:  # noqa: ANN401
        """The answer, whole; botocore's errors where it does not become so."""
        from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError
        from urllib3.exceptions import HTTPError, ProtocolError
        from urllib3.exceptions import TimeoutError as PoolTimeoutError

        budget = Budget(self._most, self._seconds)
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
