"""The rules of ``tests.chaos.books``, as far as they can be judged beside real services."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.model.cluster import Instance
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.ledger import Ledger
from tests.chaos import books
from tests.chaos.books import JUST_UP, Books, Row
from tests.chaos.drawn_site import is_sold

if TYPE_CHECKING:
    from tests.real.stage import RealStage

ENDED_WELL = {"COMPLETED", "CANCELLED", "TIMEOUT", "DEADLINE"}
LOST = {"NODE_FAIL", "BOOT_FAIL"}


class RealBooks(Books):
    """``wrongs`` as there. The ledger is read from its file; times (s) are those of the wall."""

    _stage: RealStage  # type: ignore[assignment]

    def rows(self) -> tuple[dict[str, Row], set[str]] | None:
        path = self._stage.config.state / "ledger.db"
        try:
            with contextlib.closing(Ledger(path, read_only=True)) as ledger:
                return books._read(ledger.store._db)
        except (SlurmElasticError, OSError, books.sqlite3.Error):
            return None

    def _came_up_unseen(self, node: str) -> bool:
        return self._stage.sched.now - self._stage.since[node] <= JUST_UP

    def ends(self, one: Instance) -> None:
        """A service ends it."""
        stage = self._stage
        stage.slurm.look()
        waits = stage.config.resume_timeout(stage.config.cloud(one.cloud))
        never = phase(stage.slurm.node(one.node)) is Phase.POWERING_UP
        # A machine that does not register in time is ended before Slurm gives its node up.
        if not (never and stage.now() - one.launched > waits / 2):
            self._judge(one, "its service ends it")

    def _is_hidden(self, one: Instance, row: Row | None) -> bool:
        # A list of its cloud may have been answered between the ledger's line and this reading.
        made = self.machines.get(one.id)
        fresh = made is not None and self._stage.now() - made.launched < JUST_UP
        return fresh or super()._is_hidden(one, row)

    def look(self) -> None:
        stage = self._stage
        for cloud, account in stage.accounts.items():
            if f"{cloud}-theirs" not in account.alive():
                self.wrong("somebody else's", f"{cloud}-theirs was ended")

    def look_at_ended(self, jobs: Any) -> None:
        """What became of jobs, by Slurm."""
        for job in jobs:
            if not job.has_ended or job.id in self.completed | self.fallen:
                continue
            if job.states & LOST:
                if job.requeue:
                    self.wrong("job lost", f"{job.id} may be requeued, and is {sorted(job.states)}")
                self.fallen.add(job.id)
            elif job.states & ENDED_WELL:
                self.completed.add(job.id)
            else:
                self.fallen.add(job.id)
                self.counts["failed"] += 1
                self._stage.note(f"job {job.id} is {sorted(job.states)} by itself")

    def trouble(self, *, held: bool) -> str:
        """The first thing that is not at rest; empty if all is."""
        stage = self._stage
        nodes = stage.slurm.nodes()
        for name in stage.nodes:
            node, machines = nodes[name], stage.machines_of(name)
            where = phase(node)
            ours = node.reason.startswith("slurm-elastic:hold:")
            may_hold = held or (ours and not is_sold(stage.config, self._pool_of(name)))
            if "DOWN" in node.states or (is_drained(node) and not (may_hold and ours)):
                return f"{name} is out: {sorted(node.states)} {node.reason}"
            if where is not Phase.POWERED_DOWN or machines:
                return f"{name} is {where} with {[m.id for m in machines]}"
        return self._left()

    def _left(self) -> str:
        found = self.rows()
        if found is None:
            return "the ledger cannot be read"
        rows, opened = found
        live = sorted(id_ for id_, row in rows.items() if row.ended is None and not row.off)
        if live or opened:
            return f"the ledger has {live} and open launches {sorted(opened)}"
        if wrongly := self._wrongly_kept(rows):
            return wrongly
        path = self._stage.config.state / FILE
        with contextlib.closing(CheckpointState(path, read_only=True)) as moves:
            under_way = books.sqlite3.Connection.execute(
                moves._db, "select count(*) from migrations where not over"
            )
            return "a job is on its way still" if under_way.fetchone()[0] else ""
