"""Nodes that were drained because of a notice are let go again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.ckptman.nodes import ALL_NODES, CORRELATION, MARK, RELEASE_BACKOFF
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import threats_of_notices
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.checkpoint.threat import by_subject, moving
from slurm_elastic.policies.nodes.node_reasons import has_mark
from slurm_elastic.policies.nodes.node_state import is_drained
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


class _Refusal(Struct, frozen=True):
    """Until when (the clock for pauses) Slurm is not asked again."""

    pause: float = 0.0
    until: float = float("-inf")


class NodeReleases:
    """The debts stand in the state, until Slurm has answered. The pauses are in memory: a new
    start asks at once.
    """

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._refused: dict[str, _Refusal] = {}
        self._reports = ReportOnce[str]()

    def release_due(self, machines: Mapping[str, Machine]) -> None:
        """Undo our drains that are due."""
        state = self._site.state
        owed = state.releases()
        self._refused = {n: r for n, r in self._refused.items() if n in owed or (owed and not n)}
        self._reports.forget_unless(self._refused.__contains__)
        if not owed:
            return
        leaving = moving(by_subject(threats_of_notices(state.notices(), machines)))
        kept = [name for name in owed if name in leaving]
        state.forget_releases(*kept)  # the end of what stands against them owes it anew
        due = [name for name in owed if name not in kept and self._may(name)]
        if due and self._may(ALL_NODES):
            self._release(due)

    def _release(self, names: Sequence[str]) -> None:
        try:
            view = self._site.slurm.nodes(names)
        except SlurmError as error:
            self._put_off(ALL_NODES, compress(names), str(error))
            return
        self._refused.pop(ALL_NODES, None)
        self._reports.over(ALL_NODES)
        for name in names:
            if self._is_released(name, view.get(name)):
                self._site.state.forget_releases(name)

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
        self._site.recorder.record(CORRELATION, "ckpt-released", (name,), why)
        return True

    def _may(self, name: str) -> bool:
        refused = self._refused.get(name)
        return refused is None or self._site.monotonic() >= refused.until

    def _put_off(self, name: str, nodes: str, why: str) -> None:
        """Told once for each reason, though it is tried again and again."""
        pause = RELEASE_BACKOFF.longer(self._refused.get(name, _Refusal()).pause)
        self._refused[name] = _Refusal(pause=pause, until=self._site.monotonic() + pause)
        if self._reports.is_news(name, why):
            log.warning("nodes stay drained nodes=%s error=%s", nodes, why)
