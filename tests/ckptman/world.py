"""The world of tests/controller with the second service beside the daemon, over the same fakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from slurm_elastic.checkpointers.fake import FakeCheckpointer
from slurm_elastic.ckptman import apply, poller, suspended
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.moves import after_requeue, migration, requeueing
from slurm_elastic.ckptman.poller import Poller
from slurm_elastic.ckptman.recorder import BufferedRecorder
from slurm_elastic.ckptman.service import Service
from slurm_elastic.ckptman.site import CheckpointSite, JobList, pools_by_node
from slurm_elastic.ckptman.sources import CloudNotices, DropDirectory
from slurm_elastic.config.sections.checkpoint import CheckpointSettings
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration
from slurm_elastic.state.ckptstate.orders import NoticeOrder, SaveOrder, WithdrawOrder, drop
from slurm_elastic.state.ledger import Ledger
from tests.controller.world import PUB, Killed, World

SETTINGS = CheckpointSettings(
    method="fake",
    policy="on_notice",
    expected_duration=10.0,
    probe_after=1e9,
    directory="/shared/images",
)


class CkptWorld(World):
    """``service`` is None while none runs; ``saver`` is the checkpoint method of all jobs, and
    ``die_at`` the fault point at which the service ends next.
    """

    def __init__(self, site: Mapping[str, Any] | None = None, **changes: Any) -> None:
        self.service: Service | None = None
        self.die_at = ""
        self.settings = msgspec.structs.replace(SETTINGS, **changes)
        super().__init__(checkpoint=self.settings, **(site or {}))
        self.saver = FakeCheckpointer(lambda: self.now, self.pause, seconds=2.0)
        self.start_ckptman()

    # the service

    def start_ckptman(self) -> None:
        self.state = self.make_state()
        ledger = self.make_followed()
        jobs = JobList(self.slurm, fresh=-1.0)
        self.ckpt = CheckpointSite(
            config=self.config, slurm=self.slurm, ledger=ledger, state=self.state,
            recorder=BufferedRecorder(ledger, self.state, lambda: self.now), jobs=jobs,
            checkpointers={"fake": self.saver}, providers=self.clouds,
            pool_of=pools_by_node(self.config), now=lambda: self.now, monotonic=lambda: self.now,
            host=self.host,
        )  # fmt: skip
        self.service = Service(self.ckpt, KeyedExecutor(0))
        self.drop = DropDirectory(self.dir / "notices", create=True)
        sources = [CloudNotices(self.clouds["pub"]), self.drop]
        self.pollers = [
            Poller(self.ckpt, s, 5.0, self.service.reader.machines, lambda: None, self.service.orders)
            for s in sources
        ]  # fmt: skip

    def make_state(self) -> CheckpointState:
        return CheckpointState(self.dir / "checkpoints.db")

    def make_followed(self) -> Ledger:
        """The ledger as the second service has it."""
        return self.ledger

    def stop_ckptman(self) -> None:
        self.service = None
        self.state.close()

    def restart_ckptman(self) -> None:
        self.stop_ckptman()
        self.start_ckptman()

    def close(self) -> None:
        self.state.close()
        super().close()

    def reach(self, point: str) -> None:
        if point == self.die_at:
            self.die_at = ""
            raise Killed(point)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (after_requeue, apply, migration, poller, requeueing, suspended):
            monkeypatch.setattr(module, "reach", self.reach)

    def tick(self) -> None:
        super().tick()
        if self.service is None:
            return
        try:
            for one in self.pollers:
                one.poll()
            self.service.guarded_tick()
        except Killed:
            self.stop_ckptman()

    # jobs

    def live(self) -> None:
        super().live()
        for job in self.slurm.queue().values():
            if "RUNNING" in job.states and not job.start:
                self.slurm.set_job(job.id, start=self.now)

    def runs(self, number: int, **fields: Any) -> SlurmJob:
        """Submit a job for the public nodes, wait until it runs, and for two minutes more."""
        self.slurm.submit(number, PUB, **fields)
        self.until(lambda: "RUNNING" in self.job(number).states)
        self.advance(120)
        return self.job(number)

    def job(self, number: int) -> SlurmJob:
        return self.slurm.queue()[number]

    def until(self, condition: Any, most: float = 600.0) -> None:
        end = self.now + most
        while not condition():
            assert self.now < end, (self.slurm.queue(), self.state.migrations(since=0.0))
            self.advance(1.0, step=1.0)

    def machine(self, node: str) -> str:
        (found,) = self.machines_of(node)
        return found

    def interrupt(self, node: str, notice: float = 120.0) -> str:
        machine = self.machine(node)
        self.clouds["pub"].interrupt(machine, self.now + notice)
        return machine

    def save_before(self, number: int) -> None:
        """An image that an earlier save left."""
        self.order("save", job=number)
        self.advance(5)

    def order(self, kind: str, **fields: Any) -> None:
        """As ``slurm-elastic ckpt`` leaves it."""
        kinds = {"notice": NoticeOrder, "withdraw": WithdrawOrder, "save": SaveOrder}
        drop(self.dir / "notices", kinds[kind](**fields), self.now)

    def take(self, node: str) -> None:
        """The machine is gone: its slurmd does not answer."""
        self.clouds["pub"].take(self.machine(node))

    def migrations(self) -> list[Migration]:
        return list(self.state.migrations(since=0.0))

    def back(self, number: int, attempt: int) -> bool:
        job = self.job(number)
        return job.restarts == attempt and "RUNNING" in job.states

    def told(self, number: int) -> list[str]:
        return self.kinds(f"job:{number}")


def told_lines(slurm: FakeSlurm) -> list[str]:
    """All lines that were written to the outputs of jobs."""
    texts = [str(fields["text"]) for name, fields in slurm.updates if name == "tell"]
    return [line for text in texts for line in text.splitlines()]
