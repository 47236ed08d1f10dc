"""Records decisions with their causes for ``explain``. All of the controller records here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import Struct

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.state.ledger import Decision, Ledger


class DecisionRecorder(Struct, frozen=True):
    """Writes decisions to the ledger. ``now`` is the clock (Unix time). Raises sqlite3.Error."""

    ledger: Ledger
    now: Callable[[], float]

    def record(
        self,
        correlation: str,
        kind: str,
        subjects: Iterable[str],
        cause: AnyCause,
        detail: dict[str, object] | None = None,
    ) -> None:
        """Record one decision. ``subjects``: nodes, ``job:ID`` and the like."""
        self.ledger.decisions.record(
            Decision(
                at=self.now(),
                correlation=correlation,
                kind=kind,
                subjects=tuple(subjects),
                cause=cause,
                detail=detail,
            )
        )

    def record_if_changed(
        self,
        correlation: str,
        kind: str,
        nodes: Sequence[str],
        cause: AnyCause,
        *,
        jobs: Iterable[str] = (),
        repeated: Collection[str] | None = None,
        once_per_correlation: bool = False,
    ) -> list[str]:
        """Record a decision that each round or each try of a request takes again, for the nodes
        whose last decision was different. Returns these nodes; if there are none, nothing is
        recorded.

        ``jobs``: further subjects (``job:ID``). ``repeated``: the nodes for which an unchanged
        decision is left out; None means all ``nodes``. ``once_per_correlation``: a decision under
        another correlation counts as different, too.
        """
        comparable = set(nodes if repeated is None else repeated)
        under = correlation if once_per_correlation else None
        changed = set(self.find_changed([n for n in nodes if n in comparable], kind, cause, under))
        recorded = [n for n in nodes if n not in comparable or n in changed]
        if recorded:
            self.record(correlation, kind, (*recorded, *jobs), cause)
        return recorded

    def find_changed(
        self, nodes: Iterable[str], kind: str, cause: AnyCause, correlation: str | None = None
    ) -> list[str]:
        """Return the nodes whose last decision has another kind or cause. With a ``correlation``
        also return the nodes whose last decision has another correlation.
        """
        return [n for n in nodes if self._is_changed(n, kind, cause, correlation)]

    def _is_changed(self, node: str, kind: str, cause: AnyCause, correlation: str | None) -> bool:
        # Compare causes, not their sentences: two causes may read alike, and a sentence may be
        # reworded by the next release.
        for last in self.ledger.decisions.about(node, 1):
            same = (last.kind, last.cause) == (kind, cause)
            return not same or correlation not in (None, last.correlation)
        return True
