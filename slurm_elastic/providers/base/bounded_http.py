"""HTTP requests by ``requests`` that end by a deadline.

The time-out of requests limits the wait for each piece of an answer only, and one call may need
several requests (a token, the API's versions). Here all of them end by one deadline. No request is
repeated.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

from slurm_elastic.base.processes.bounded import ANSWER, ReadBudget, pieces

_CONNECT_FRACTION = 0.3
"""The fraction of the time-out that connecting may take."""


class NotConnected(requests.exceptions.ConnectionError):
    """No connection was made, so nothing was sent."""


class BoundedSession(requests.Session):
    """All requests of a thread inside ``within`` end by one deadline."""

    def __init__(self) -> None:
        super().__init__()
        # A kept connection may have been closed by the server. Then an order that never arrived
        # would look like an order whose answer was lost.
        self.headers["Connection"] = "close"
        for scheme in ("http://", "https://"):
            self.mount(scheme, HTTPAdapter(max_retries=0))
        self._thread = threading.local()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Limit the requests in the block to ``seconds`` in total."""
        self._thread.until, self._thread.whole = time.monotonic() + seconds, seconds
        try:
            yield
        finally:
            del self._thread.until

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:  # noqa: ANN401
        """Send a request. The answer is complete on return."""
        seconds = self._seconds_left()
        budget = ReadBudget(ANSWER, seconds)
        kwargs |= {
            "timeout": (min(seconds, self._thread.whole * _CONNECT_FRACTION), seconds),
            "stream": True,
        }
        try:
            response = super().send(request, **kwargs)
        except requests.exceptions.ConnectionError as error:
            if _is_unconnected(error):
                raise NotConnected(str(error)) from error
            raise
        try:
            # Neither a server that sends a byte now and then nor an answer larger than memory may
            # stop us.
            body = b"".join(pieces(response.raw, budget, decode_content=True))
        except TimeoutError as error:
            raise requests.exceptions.Timeout(str(error)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise requests.exceptions.ConnectionError(error) from error
        finally:
            response.close()
        response.raw = io.BytesIO(body)
        return response

    def _seconds_left(self) -> float:
        seconds: float = self._thread.until - time.monotonic()
        if seconds <= 0:
            raise requests.exceptions.Timeout("the answer took too long")
        return seconds


def _is_unconnected(error: requests.exceptions.ConnectionError) -> bool:
    """Whether no connection was made. requests has a class of its own for this only if connecting
    took too long.
    """
    reason = getattr(error.args[0], "reason", None) if error.args else None
    is_refused = isinstance(reason, urllib3.exceptions.NewConnectionError)
    return is_refused or isinstance(error, requests.exceptions.ConnectTimeout)


def is_unsent(error: BaseException | None) -> bool:
    """Whether the failed request was never sent. Only the last error of requests counts: the chain
    may also contain an earlier error that was being handled.
    """
    while error is not None and not isinstance(error, requests.exceptions.RequestException):
        error = error.__cause__ or error.__context__
    return isinstance(error, NotConnected)
