"""The local provider's cloud for tests: an agent whose slurmd's only sleep."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from patience import eventually

from slurm_elastic.config import Cluster
from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local.agent import LocalAgent
from slurm_elastic.machine.local.driver import AgentSettings
from slurm_elastic.machine.local.listening import RootServer
from slurm_elastic.machine.local.records import read_records
from slurm_elastic.machine.local.wire import AgentAnswer, LaunchOrder, MachineRecord
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.local.settings import LocalCloud
from slurm_elastic.testing.contract import UUID

POOL = Pool(
    name="p", cloud="here", nodes=("n1", "n2", "n3", "n4", "n5"), cpus=2, real_memory=900,
    instance_types=("slurmd",), markets=(Market.RESERVED,),
)  # fmt: skip


def settings(path: Path, **more: object) -> LocalCloud:
    """A cloud of the agent at that socket."""
    return LocalCloud(
        name="here", location=Location.ON_PREMISES, socket=str(path), price=0.02, **more
    )


def provider_at(path: Path, uuid: str = UUID, **more: object) -> Provider:
    return open_provider(settings(path, **more), Cluster(name="test", uuid=uuid))


class LocalBed:
    """An agent whose slurmd's only sleep, behind a socket that can lose answers or stall."""

    pool = POOL

    def __init__(self, place: Path, capacity: int | None = None) -> None:
        slurmd = place / "slurmd"
        slurmd.write_text("#!/bin/sh\nexec sleep 1000\n")
        slurmd.chmod(0o755)
        self._place = place
        self._trouble: str | None = None
        self._struck: list = ["", "", 0]
        self._healed = threading.Event()
        self.socket = place / "sock"
        self.limit(capacity)
        self._server = RootServer(self.socket, {os.getuid()}, self._answer)
        self._server.start()

    def limit(self, count: int | None) -> None:
        self._stop_agent()
        self.agent = LocalAgent(
            AgentSettings(
                nodes=frozenset({*POOL.nodes, "pet"}),
                directory=self._place / "machines",
                slurm_conf=str(self._place / "slurm.conf"),
                log_dir=self._place,
                slurmd=str(self._place / "slurmd"),
                capacity=count,
            )
        )

    def open(self, uuid: str = UUID, timeout: float = 60.0) -> Provider:
        return provider_at(self.socket, uuid, api_timeout=timeout)

    def alive(self) -> set[str]:
        records = read_records(self._place / "machines")
        return {r.id for r in records if r.state in ("pending", "running")}

    def add_foreign(self) -> set[str]:
        launch = LaunchOrder(
            cluster="nobody", generation="pet", pool="p", nodes=("pet",),
            instance_type="slurmd", market=Market.RESERVED, price=0.0,
        )  # fmt: skip
        return {record.id for record in self.agent.launch(launch)}

    def fail_late(self, node: str) -> Callable[[], None]:
        """Its slurmd dies."""

        def record() -> MachineRecord:
            (found,) = [r for r in read_records(self._place / "machines") if r.node == node]
            return found

        def fail() -> None:
            eventually(lambda: record().process is not None)
            process = record().process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
            # Ask the agent: it answers from memory, which follows the file a moment later.
            eventually(lambda: node not in {m.node for m in self.open().instances()})

        return fail

    def heal(self) -> None:
        self._trouble = None
        self._struck = ["", "", 0]
        self._healed.set()

    def lose_answers(self) -> None:
        self._trouble = "lost"

    def fall_silent(self) -> None:
        self._trouble = "silent"

    def close(self) -> None:
        self.heal()
        self._server.close()
        self._stop_agent()
        for record in read_records(self._place / "machines"):
            local_processes.power_off(str(self._place / "machines" / record.id))

    def _stop_agent(self) -> None:
        if hasattr(self, "agent"):
            self.agent.close()

    def strike(self, kind: str, op: str, count: int) -> None:
        """Have the next calls of that ``op`` go wrong: ``lost``, ``silent``, ``late``, ``page``,
        ``dropped`` (before any effect) or the code of a refusal.
        """
        self._struck = [kind, op, count]

    def _answer(self, line: bytes) -> bytes:
        trouble, op, count = self._struck
        if op and msgspec.json.decode(line)["op"] == op and count:
            self._struck[2] = count - 1
            return self._wrong(trouble, line)
        if self._trouble == "silent":
            self._healed.wait(60)
        answer = self.agent.answer(line)
        if self._trouble == "lost":
            raise ConnectionResetError
        return answer

    def _wrong(self, trouble: str, line: bytes) -> bytes:
        if trouble == "dropped":
            raise ConnectionResetError
        if trouble == "late":
            self._healed.wait(0.2)
        elif trouble not in ("lost", "silent", "page"):
            return msgspec.json.encode(AgentAnswer(ok=False, code=trouble, message="as asked"))
        answer = self.agent.answer(line)
        if trouble == "silent":
            self._healed.wait(4)
        if trouble in ("lost", "silent"):
            raise ConnectionResetError
        return b"<html>a proxy's page</html>" if trouble == "page" else answer
