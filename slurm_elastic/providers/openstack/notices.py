"""Notices for hosts that OpenStack's administrators take out of service. nova shows the state of a
server's host (``host_status``) only if its policy lets the project see it; otherwise there are no
such notices.

API reference: Compute API, "List Servers Detailed", since microversion 2.16. MAINTENANCE means a
disabled compute service. UNKNOWN and DOWN only mean that nova has lost contact to it, so they are
no notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slurm_elastic.model.cluster import InstanceState, Notice, NoticeKind
from slurm_elastic.providers.openstack.convert import ServerFields, state_of

NOTICES_TTL_S = 60.0
"""One listing of servers is reused for so long, because it reads all servers."""
RETRY_HIDDEN_S = 3600.0
"""Seconds until the next try if nova hides the status of hosts."""
MAINTENANCE = "MAINTENANCE"


class OpenStackNotices:
    """The notices about our servers, which ``live`` lists. ``clock`` is Unix time; ``monotonic``
    measures the pauses.
    """

    def __init__(
        self,
        live: Callable[[], Iterable[ServerFields]],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._live, self._clock, self._monotonic = live, clock, monotonic
        self._notices: Sequence[Notice] = ()
        self._read_again_at = float("-inf")

    def standing(self) -> Sequence[Notice]:
        """One notice for each of our servers on a host in maintenance."""
        if self._monotonic() >= self._read_again_at:
            running = [s for s in self._live() if state_of(s) is InstanceState.RUNNING]
            hidden = bool(running) and all(s.host_status is None for s in running)
            now = self._clock()
            kind, reason = NoticeKind.INTERRUPTION, "nova: the server's host is in maintenance"
            self._notices = [
                Notice(instance=s.id, kind=kind, seen=now, reason=reason)
                for s in running
                if s.host_status == MAINTENANCE
            ]
            self._read_again_at = self._monotonic() + (RETRY_HIDDEN_S if hidden else NOTICES_TTL_S)
        return self._notices
