"""How long a process waits for AWS's services, and what it asks of them.

Standard library and botocore alone, because it also runs in the peer's own environment.
"""

from __future__ import annotations

import re
import resource
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest, AWSResponse
    from botocore.httpsession import URLLib3Session

_ACTION = re.compile(r"(?:^|&)Action=(\w+)")


class CloudClock:
    """Stands between botocore and the network once ``install`` was called.

    ``waited`` is the time (s) in which requests were under way less the processor time spent on
    them: what the service takes, and nothing of what the client does. ``last`` says when (Unix
    time) the newest answer to each action was there.
    """

    def __init__(self) -> None:
        self.waited = 0.0
        self.calls: Counter[str] = Counter()
        self.last: dict[str, float] = {}
        self._lock = threading.Lock()

    def install(self) -> None:
        """Count from now on, in the whole process."""
        from botocore.httpsession import URLLib3Session

        original = URLLib3Session.send

        def send(session: URLLib3Session, request: AWSPreparedRequest) -> AWSResponse:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return original(session, request)
            finally:
                spent = time.thread_time() - cpu
                self._add(action_of(request), time.perf_counter() - wall - spent)

        URLLib3Session.send = send  # type: ignore[method-assign,assignment]

    def _add(self, action: str, waited: float) -> None:
        with self._lock:
            self.waited += max(0.0, waited)
            self.calls[action] += 1
            self.last[action] = time.time()


def action_of(request: AWSPreparedRequest) -> str:
    """The action that a prepared request asks for; for Route 53 its method and path."""
    target = request.headers.get("X-Amz-Target")
    if target:
        text = target.decode() if isinstance(target, bytes) else str(target)
        return text.rpartition(".")[2]
    body = request.body
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")
    found = _ACTION.search(text)
    if found:
        return found[1]
    return f"{request.method} {urlsplit(request.url).path}"


def cpu_seconds() -> float:
    """User and system time of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def peak_megabytes() -> float:
    """The most memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
