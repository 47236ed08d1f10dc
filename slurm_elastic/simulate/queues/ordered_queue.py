"""The queue of a site with several clouds, which each job uses in an order of its own."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.simulate.queues.cloud_order import JobOrders
from slurm_elastic.simulate.queues.queueing import Queue
from slurm_elastic.simulate.queues.reservations import Profile
from slurm_elastic.simulate.shared_machines import SharedMachine


class OrderedQueue(Queue):
    """The queue with orders. Call ``with_orders`` before the first job arrives."""

    def with_orders(self, orders: JobOrders) -> OrderedQueue:
        """Set the orders of all jobs."""
        self.orders = orders
        start = self.start

        def start_ordered(
            job: int, pool: int, need: int, now: int, beside: SharedMachine | None = None
        ) -> bool:
            started = start(job, pool, need, now, beside)
            if started:
                orders.start(job)
            return started

        self.start = start_ordered
        return self

    def _place(self, job: int, now: int) -> bool:
        self._each = self.orders.lanes[job]
        return super()._place(job, now)

    def _reserve(self, job: int, now: int) -> None:
        self._each = self.orders.lanes[job]
        super()._reserve(job, now)

    def _first_fit(self, job: int, profiles: Sequence[Profile], now: int) -> int | None:
        self._each = self.orders.lanes[job]
        return super()._first_fit(job, profiles, now)
