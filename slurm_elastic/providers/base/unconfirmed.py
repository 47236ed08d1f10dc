"""Orders whose machines may not be listed yet, for clouds that take no idempotency token.

If the answer to an order is lost, only listings show whether the cloud carried it out. Listings may
lag behind, and the order itself may still be on its way. Therefore a missing machine is ordered
again only after the lag has passed. Until then a repeated launch is answered with UnsettledError.
``policies/repair/launch_repairs.py`` decides whether a launch is repeated at all.
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
    """The times of orders that no listing has shown yet, by launch and node. Thread-safe.

    ``lag`` (s): how long after the end of its order a machine may be missing from listings. The
    orders of an earlier process are not known. A launch that it began (``LaunchSpec.is_repeated``)
    counts as ordered at the latest possible time, which is when this process started.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_ordered_at")}

    def __init__(self, cloud: str, lag: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cloud = cloud
        self._lag = lag
        self._clock = clock
        self._process_began = clock()
        self._lock = threading.Lock()
        self._ordered_at: dict[tuple[str, str], float] = {}

    @contextmanager
    def order(
        self, generation: str, nodes: Sequence[str], is_refusal: Callable[[ProviderError], bool]
    ) -> Iterator[None]:
        """Wrap exactly one call to the cloud. Unless the call was refused, the order may have taken
        effect at any moment up to the end of the call.
        """
        refused = False
        try:
            yield
        except ProviderError as error:
            refused = is_refusal(error)
            raise
        finally:
            # In the finally block: the order may also have taken effect if the call raised any
            # other exception or was interrupted.
            if not refused:
                now = self._clock()
                with self._lock:
                    self._ordered_at = {
                        k: ordered_at_s
                        for k, ordered_at_s in self._ordered_at.items()
                        if now - ordered_at_s < self._lag
                    }
                    self._ordered_at |= {(generation, node): now for node in nodes}

    def listed(self, generation: str, nodes: Sequence[str]) -> None:
        """Forget the orders for these nodes, because listings show their machines."""
        with self._lock:
            for node in nodes:
                self._ordered_at.pop((generation, node), None)

    def require(self, spec: LaunchSpec, missing: Sequence[str]) -> None:
        """Raise UnsettledError if machines of the ``missing`` nodes may exist although no listing
        shows them.
        """
        earliest = self._process_began if spec.is_repeated else float("-inf")
        now = self._clock()
        with self._lock:
            ordered_at = {
                # ``max``, because an order of this process may be later than its start.
                n: max(self._ordered_at.get((spec.generation, n), earliest), earliest)
                for n in missing
            }
        recent = [
            ordered_at_s for ordered_at_s in ordered_at.values() if now - ordered_at_s < self._lag
        ]
        if not recent:
            return
        age = now - max(recent)
        text = (
            f"{counted(len(recent), 'machine')} of this launch may have been started {brief(age)}"
            " ago by a call without an answer, and lists may lack them yet: not ordered again for"
            f" another {brief(self._lag - age)} (listing_lag)"
        )
        raise UnsettledError(self._cloud, "Unsettled", text)
