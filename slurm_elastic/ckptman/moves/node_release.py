"""Releases nodes that were drained because of a notice, after the notice is over."""

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
from slurm_elastic.model.causes.checkpoints import NoticesOver
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.checkpoint.threat import by_subject, moving
from slurm_elastic.policies.nodes.node_reasons import has_mark
from slurm_elastic.policies.nodes.node_state import is_drained
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


class _Refusal(Struct, frozen=True):
    """The last ``pause`` (s), and ``until`` when (monotonic) Slurm is not asked again."""

    pause: float = 0.0
    until: float = float("-inf")


class NodeReleases:
    """Releases nodes. The nodes are in the state until Slurm has answered. The pauses are in
    memory, so a restarted service asks at once.
    """

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._refusals: dict[str, _Refusal] = {}
        self._reports = ReportOnce[str]()

    def release_due(self, machines: Mapping[str, Machine]) -> None:
        """Undo our drains, unless another notice stands against the node."""
        state = self._site.state
        nodes_to_release = state.releases()
        self._refusals = {
            name: refusal
            for name, refusal in self._refusals.items()
            # The key without a name is ALL_NODES. It is kept while any node waits.
            if name in nodes_to_release or (nodes_to_release and not name)
        }
        self._reports.forget_unless(self._refusals.__contains__)
        if not nodes_to_release:
            return
        leaving = moving(by_subject(threats_of_notices(state.notices(), machines)))
        threatened_names = [name for name in nodes_to_release if name in leaving]
        # Another notice stands against these nodes; when it ends, they are added again.
        state.forget_releases(*threatened_names)
        due_names = [
            name
            for name in nodes_to_release
            if name not in threatened_names and self._may_ask(name)
        ]
        if due_names and self._may_ask(ALL_NODES):
            self._release(due_names)

    def _release(self, names: Sequence[str]) -> None:
        try:
            view = self._site.slurm.nodes(names)
        except SlurmError as error:
            self._put_off(ALL_NODES, compress(names), str(error))
            return
        self._refusals.pop(ALL_NODES, None)
        self._reports.clear(ALL_NODES)
        for name in names:
            # Forgotten only after Slurm has done it, so that a crash repeats the release.
            if self._try_to_release(name, view.get(name)):
                self._site.state.forget_releases(name)

    def _try_to_release(self, name: str, node: SlurmNode | None) -> bool:
        """Release one node. Returns True if nothing is left to do for it."""
        # An administrator has drained it since, or it is not drained: leave it as it is.
        if node is None or not is_drained(node) or not has_mark(node, MARK):
            return True
        try:
            node_updates.return_to_service(self._site.slurm, [node])
        except SlurmError as error:
            self._put_off(name, name, str(error))
            return False
        self._site.recorder.record(CORRELATION, "ckpt-released", (name,), NoticesOver())
        return True

    def _may_ask(self, name: str) -> bool:
        refusal = self._refusals.get(name)
        return refusal is None or self._site.monotonic() >= refusal.until

    def _put_off(self, name: str, nodes: str, reason: str) -> None:
        """Retry later, with longer pauses. Each reason is logged once."""
        pause = RELEASE_BACKOFF.longer(self._refusals.get(name, _Refusal()).pause)
        self._refusals[name] = _Refusal(pause=pause, until=self._site.monotonic() + pause)
        if self._reports.is_news(name, reason):
            log.warning(
                "nodes stay drained, their release is retried nodes=%s error=%s",
                nodes,
                reason,
            )
