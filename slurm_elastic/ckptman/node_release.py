"""Nodes that were drained because of a notice are let go again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.ckptman.nodes import ALL, CORRELATION, MARK, PAUSES
from slurm_elastic.ckptman.see import told_of
from slurm_elastic.ckptman.site import Site
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.checkpoint.threat import by_subject, moving
from slurm_elastic.policies.nodes.node_reasons import has_mark
from slurm_elastic.policies.nodes.node_state import is_drained
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


class _Refused(Struct, frozen=True):
    """Until when (the clock for pauses) Slurm is not asked again."""

    pause: float = 0.0
    until: float = float("-inf")


class NodeReleases:
    """The debts stand in the state, until Slurm has answered. The pauses are in memory: a new
    start asks at once.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._refused: dict[str, _Refused] = {}
        self._reports = ReportOnce[str]()

    def look(self, machines: Mapping[str, Machine]) -> None:
        """Undo our drains that are due."""
        state = self._site.state
        owed = state.releases()
        self._refused = {n: r for n, r in self._refused.items() if n in owed or (owed and not n)}
        self._reports.forget_unless(self._refused.__contains__)
        if not owed:
            return
        leaving = moving(by_subject(told_of(state.notices(), machines)))
        kept = [name for name in owed if name in leaving]
        state.released(*kept)  # the end of what stands against them owes it anew
        due = [name for name in owed if name not in kept and self._may(name)]
        if due and self._may(ALL):
            self._release(due)

    def _release(self, names: Sequence[str]) -> None:
        try:
            view = self._site.slurm.nodes(names)
        except SlurmError as error:
            self._put_off(ALL, compress(names), str(error))
            return
        self._refused.pop(ALL, None)
        self._reports.over(ALL)
        for name in names:
            if self._is_released(name, view.get(name)):
                self._site.state.released(name)

    def _is_released(self, name: str, node: SlurmNode | None) -> bool:
        # Nothing is owed where an admin has drained it by now, or nobody: theirs stays.
        if node is None or not is_drained(node) or not has_mark(node, MARK):
            return True
        try:
            node_updates.return_to_service(self._site.slurm, [node])
        except SlurmError as error:
            self._put_off(name, name, str(error))
            return False
        why = "no notice stands against it any more"
        self._site.journal.note(CORRELATION, "ckpt-released", (name,), why)
        return True

    def _may(self, name: str) -> bool:
        refused = self._refused.get(name)
        return refused is None or self._site.monotonic() >= refused.until

    def _put_off(self, name: str, nodes: str, why: str) -> None:
        """Told once for each reason, though it is tried again and again."""
        pause = PAUSES.longer(self._refused.get(name, _Refused()).pause)
        self._refused[name] = _Refused(pause=pause, until=self._site.monotonic() + pause)
        if self._reports.is_news(name, why):
            log.warning("nodes stay drained nodes=%s error=%s", nodes, why)
