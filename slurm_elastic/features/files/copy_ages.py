"""How long the files of a run have waited in their state, in monotonic time."""

from __future__ import annotations

from slurm_elastic.base.since import SinceMemory
from slurm_elastic.controller.context import Site
from slurm_elastic.model.copying import JobCopy

_Key = tuple[int, int, str, str]


class CopyAges:
    """The ages of the ledger's rows. An age of more than ``bound_s`` cannot be right, and counts as
    ``if_unknown_s`` when it is first seen.
    """

    def __init__(self, site: Site, bound_s: float, *, if_unknown_s: float = 0.0) -> None:
        self._site, self._bound_s, self._if_unknown_s = site, bound_s, if_unknown_s
        self._since = SinceMemory[_Key]()

    def age_s(self, row: JobCopy) -> float:
        """The seconds since the row's ``since``, whatever has happened to the clock."""
        monotonic_s = self._site.monotonic()
        since = self._since.since(
            _key(row), row.since, now=self._site.now(), monotonic_s=monotonic_s,
            bound_s=self._bound_s, if_unknown_s=self._if_unknown_s,
        )  # fmt: skip
        return since.age_s(monotonic_s, if_unknown=self._if_unknown_s)

    def forget_finished(self) -> None:
        """Forget finished and deleted rows."""
        rows = {_key(row) for row in self._site.ledger.copies.open()}
        self._since.forget_unless(rows.__contains__)


def _key(row: JobCopy) -> _Key:
    return row.job, row.restarts, row.node, row.machine
