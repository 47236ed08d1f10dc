"""Orders whose machines may not show yet, for clouds that take no idempotency token.

Where the answer to an order is lost, only the lists tell whether it was carried out. They may lag
behind, and the order may be on its way still. So what is not listed is not ordered again before
that must have settled; until then a repeated launch is answered with UnsettledError. Whether it is
repeated at all says ``policies/repair/launch_repairs.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from slurm_elastic.base.errors import ProviderError, UnsettledError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import brief, counted
from slurm_elastic.model.cluster import LaunchSpec


class UnconfirmedOrders:
    """Remembers by launch and node when an order was given that no list has shown. Thread-safe.

    ``lag`` (s) is how long after its order's end a machine may be missing from lists. Nobody
    remembers the orders of an earlier process, so a launch of one (``LaunchSpec.again``) counts as
    ordered at the latest time possible: when this process began.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_since")}

    def __init__(self, cloud: str, lag: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cloud = cloud
        self._lag = lag
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}

    @contextmanager
    def order(
        self, generation: str, nodes: Sequence[str], is_refusal: Callable[[ProviderError], bool]
    ) -> Iterator[None]:
        """Around the very call: unless that was refused, it may have taken effect by its end."""
        refused = False
        try:
            yield
        except ProviderError as error:
            refused = is_refusal(error)
            raise
        finally:
            if not refused:
                now = self._clock()
                with self._lock:
                    self._since = {k: at for k, at in self._since.items() if now - at < self._lag}
                    self._since |= {(generation, node): now for node in nodes}

    def listed(self, generation: str, nodes: Sequence[str]) -> None:
        """The lists have shown what came of the order for these nodes."""
        with self._lock:
            for node in nodes:
                self._since.pop((generation, node), None)

    def require(self, spec: LaunchSpec, missing: Sequence[str]) -> None:
        """UnsettledError where machines of these nodes, which no list has, may be there."""
        earliest = self._began if spec.again else float("-inf")
        now = self._clock()
        with self._lock:
            since = {
                n: max(self._since.get((spec.generation, n), earliest), earliest) for n in missing
            }
        fresh = [at for at in since.values() if now - at < self._lag]
        if not fresh:
            return
        age = now - max(fresh)
        text = (
            f"{counted(len(fresh), 'machine')} of this launch may have been started {brief(age)}"
            " ago by a call without an answer, and lists may lack them yet: not ordered again for"
            f" another {brief(self._lag - age)} (listing_lag)"
        )
        raise UnsettledError(self._cloud, "Unsettled", text)
