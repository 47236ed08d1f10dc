"""Hosts that OpenStack's administrators take out of service. nova says so of a server's host
(``host_status``) only where its policy lets the project see it: without, there are no such notices.

API reference: Compute API, "List Servers Detailed", since microversion 2.16. A compute service that
is disabled is MAINTENANCE; UNKNOWN and DOWN say that nova has lost sight of it, which is no word of
its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slurm_elastic.model.cluster import InstanceState, Notice, NoticeKind
from slurm_elastic.providers.openstack.convert import ServerFields, state_of

FRESH = 60.0
"""Seconds for which one list of servers serves: it is read as a whole."""
HIDDEN = 3600.0
"""Seconds until it is tried again where nova shows no host's status."""
MAINTENANCE = "MAINTENANCE"


class Notices:
    """``live`` lists our servers; ``clock`` is Unix time, ``monotonic`` the one for pauses."""

    def __init__(
        self,
        live: Callable[[], Iterable[ServerFields]],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._live, self._clock, self._monotonic = live, clock, monotonic
        self._found: Sequence[Notice] = ()
        self._next = float("-inf")

    def standing(self) -> Sequence[Notice]:
        """One for each server on such a host."""
        if self._monotonic() >= self._next:
            running = [s for s in self._live() if state_of(s) is InstanceState.RUNNING]
            hidden = bool(running) and all(s.host_status is None for s in running)
            now = self._clock()
            kind, reason = NoticeKind.INTERRUPTION, "nova: the server's host is in maintenance"
            self._found = [
                Notice(instance=s.id, kind=kind, seen=now, reason=reason)
                for s in running
                if s.host_status == MAINTENANCE
            ]
            self._next = self._monotonic() + (HIDDEN if hidden else FRESH)
        return self._found
