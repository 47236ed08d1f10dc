"""A site for the screens: a real daemon over emulated clouds and Slurm, at a path of its own."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config import Config, configfile
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.heartbeat import (
    CKPTMAN,
    CKPTMAN_MARK,
    DAEMON,
    END_ONLY_MEANS,
    Mark,
    leave_mark,
)
from slurm_elastic.state.store.trouble import TroubleKind, trouble_of
from tests.controller.slurmctld import Slurmctld
from tests.controller.world import World

ROOT = Path("/srv")
"""Mounted for the player alone, so that all paths on screens are the same everywhere."""
PID, CKPTMAN_PID = 4_194_305, 4_194_306
"""No process of this machine has them (proc(5), pid_max): its /proc would be looked at."""
SITE = """
cluster: {{name: alps, uuid: 11111111-1111-4111-8111-111111111111}}
state_dir: {state}
slurm: {{conf: {state}.etc/slurm.conf}}
users: {{socket: {state}.run/users.sock}}
allow: {who}
limits: {limits}
policies: {policies}
timings: {{suspend_time: 300, suspend_timeout: 30, resume_timeout: 600}}
clouds:
  - name: onprem
    provider: fake
    location: on-premises
    types: {{vm4: {{cpus: 4, memory: 8G, price: 0.01}}}}
    zones: [rack1]
    stock: 4
  - name: aws
    provider: fake
    location: public
    partition: burst
    types:
      c6i.xlarge: {{cpus: 4, memory: 8G, price: 0.20}}
      c5.xlarge: {{cpus: 4, memory: 8G, price: 0.22}}
    zones: [eu-west-1a, eu-west-1b]
    limits: {{nodes: 1{more}6}}{reservations}{clouds}
pools:
  - {{name: rack, cloud: onprem, nodes: "op[1-4]", cpus: 4, memory: 8000}}
  - {{name: general, cloud: aws, nodes: "pub[1-{nodes}]", cpus: 4, memory: 8000,
      markets: [{reserved}spot, on-demand]}}{pools}
"""
RESERVATIONS = """
    reservations:
      - {name: year, type: c6i.xlarge, count: 2, from: "2027-01-01", to: "2028-01-01", upfront: 900}
      - {name: plan, kind: savings-plan, from: "2027-01-01", to: "2028-01-01", commit: 0.4,
         families: {c5: 0.14}}"""
SECOND_CLOUD = """
  - name: gcp
    provider: fake
    location: public
    types: {n2-4: {cpus: 4, memory: 8G, price: 0.19}}
    zones: [europe-west1-b]
    limits: {nodes: 8}"""
SECOND_POOL = """
  - {name: google, cloud: gcp, nodes: "goo[1-8]", cpus: 4, memory: 8000, markets: [spot, on-demand]}"""
LUA = "function slurm_job_submit(d, p, u)\n  return slurm_elastic_submit(d, p, u)\nend\n"
SLURM_CONF = (
    "ClusterName=alps\nSlurmctldHost=head\nJobSubmitPlugins=lua\n"
    "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageEnforce=associations\n"
    "include slurm-elastic.conf\n"
)
RACK = tuple(f"op{n}" for n in range(1, 5))
PUB = tuple(f"pub{n}" for n in range(1, 13))


class ProbedSlurm(Slurmctld):
    """Also answers what ``doctor`` asks."""

    def accounts(self) -> frozenset[str]:
        return frozenset({"physics"})

    def member(self, account: str) -> str:
        return "alice"

    def test_only(self, partition: str, *, account: str = "", qos: str = "", user: str = "") -> str:
        self._command("test_only")
        return f"Job 99 to start at 2027-01-15T09:00:00 in partition {partition}"


class Place(World):
    """One site in one situation. ``subject`` is what is explained; ``ranked_job``, for which clouds
    are compared; a service that is ``away`` has no process.
    """

    def __init__(
        self,
        name: str,
        who: str = "{accounts: [physics]}",
        limits: str = "{nodes: 20, dollars_per_hour: 5.0}",
        policies: str = "{}",
        nodes: int = 12,
        *,
        two_clouds: bool = False,
        reservations: bool = False,
    ) -> None:
        self.subject = "42"
        self.ranked_job = 0
        self.away: set[int] = set()
        self.disk_free = 400 << 30
        self.stopped = False
        directory = ROOT / name
        directory.mkdir(mode=0o700)
        etc, run = directory.with_suffix(".etc"), directory.with_suffix(".run")
        etc.mkdir()
        run.mkdir()
        (etc / "slurm.conf").write_text(SLURM_CONF)
        (etc / "slurm-elastic.conf").touch()
        (etc / "job_submit.lua").write_text(LUA)
        self.file = etc / "slurm-elastic.yaml"
        text = SITE.format(
            state=directory, who=who, limits=limits, policies=policies, nodes=nodes,
            more="" if nodes < 100 else "000",
            reservations=RESERVATIONS if reservations else "", reserved="reserved, " * reservations,
            clouds=SECOND_CLOUD if two_clouds else "", pools=SECOND_POOL if two_clouds else "",
        )  # fmt: skip
        self.file.write_text(text)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(run / "users.sock"))
        self._listening.listen(100)
        config = configfile.load(self.file)
        names = set(Config.__struct_fields__) - {"state_dir"}
        fields = {name: getattr(config, name) for name in names}
        fields["cluster"] = replace(config.cluster, uuid="uuid-1")  # as a World's machines bear
        super().__init__(directory, **fields)
        for pool in config.pools:
            for node in self.pools()[pool.name]:
                self.slurm.set_node(node, partitions=(config.cloud(pool.cloud).partition_name,))
        self.slurm.set_node("static1", "ALLOCATED", partitions=("main",))

    def make_slurm(self, *args: Any, **settings: Any) -> Slurmctld:
        return ProbedSlurm(*args, **settings)

    # what happens there

    def job(self, number: int, *among: str, count: int = 1, **fields: Any) -> None:
        """A job of alice's for whole nodes of these."""
        given: dict[str, Any] = {
            "user": "alice", "account": "physics", "partitions": ("burst",), "node_count": count,
            "name": "cfd", "limit": 7200, "qos": "normal", "reason": "Resources",
        }  # fmt: skip
        self.slurm.submit(number, among, count, **given | fields)

    def refuse(self, cloud: str, error: ProviderError) -> None:
        """The cloud answers every call so."""

        @contextmanager
        def refused(*_: object) -> Iterator[NoReturn]:
            raise error
            yield

        self.clouds[cloud]._called = refused  # type: ignore[method-assign,assignment]

    def stray(self, **changes: Any) -> None:
        """A machine with this cluster's tags that this ledger knows nothing of."""
        fields: dict[str, Any] = {
            "id": "aws-stray", "cloud": "aws", "node": "pub9", "generation": "g0000000000001-1",
            "instance_type": "c6i.xlarge", "zone": "eu-west-1a", "market": Market.ON_DEMAND,
            "price": 0.2, "state": InstanceState.RUNNING, "launched": self.now - 7200,
            "address": "10.9.9.9",
        }  # fmt: skip
        self.accounts["aws"].add_foreign(Instance(**fields | changes), owner="uuid-1")

    def in_trouble(self, error: Exception) -> None:
        """As the daemon says it while its ledger cannot be written."""
        trouble = trouble_of(error, self.dir / "ledger.db")
        mark = Mark(
            self.now - 2, PID, trouble.text, trouble.remedy, self.now - 600, END_ONLY_MEANS,
            is_disk_full=trouble.kind is TroubleKind.FULL,
        )  # fmt: skip
        self.finish()
        leave_mark(self.dir, mark)

    def memory(self) -> CheckpointState:
        """The state of slurm-elastic-ckptman, which has its sign of life in the ledger."""
        self.ledger.health.beat(CKPTMAN, self.now - 4, CKPTMAN_PID)
        return CheckpointState(self.dir / "checkpoints.db")

    @property
    def paused(self) -> bool:
        """Whether a pool is."""
        return any(one.until for one in self.ledger.exclusions.breakers())

    def program(
        self, kind: str, nodes: Sequence[str], jobs: Mapping[int, Sequence[str]], **changes: Any
    ) -> str:
        """Its file is as old as it says."""
        name = super().program(kind, nodes, jobs, **changes)
        os.utime(self.dir / "requests" / f"{name}.json", (self.now, self.now))
        return name

    def finish(self) -> None:
        """The last beat was a moment ago; nothing writes any more."""
        if self.stopped:
            return
        self.stopped = True
        if PID not in self.away:
            self.ledger.health.beat(DAEMON, self.now - 3, PID)
            leave_mark(self.dir, Mark(self.now - 3, PID))
        if CKPTMAN_PID not in self.away:
            self.memory().close()
            leave_mark(self.dir, Mark(self.now - 4, CKPTMAN_PID), CKPTMAN_MARK)
        self.stop()

    def exists(self, pid: int) -> bool:
        """Whether a process of the site has that number."""
        return pid in (PID, CKPTMAN_PID) and pid not in self.away


def freeze() -> Callable[[Place | None], None]:
    """All that differs between two machines and moments, once a process: the function chooses the
    place whose time and processes are seen.
    """
    current: list[Place] = []
    real_usage, real_kill, numbers = shutil.disk_usage, os.kill, itertools.count(1)

    def now() -> float:
        return current[0].now if current else 1_800_000_000.0

    def usage(path: str | os.PathLike[str]) -> Any:
        found = real_usage(path)
        return found._replace(free=current[0].disk_free) if current else found

    def kill(pid: int, signal: int) -> None:
        if signal or pid not in (PID, CKPTMAN_PID):
            real_kill(pid, signal)
        elif current and not current[0].exists(pid):
            raise ProcessLookupError(pid)

    os.environ["TZ"] = "UTC"
    time.tzset()
    time.time = now
    os.getpid = lambda: PID
    os.kill = kill
    os.geteuid = lambda: 0
    shutil.disk_usage = usage
    secrets.token_hex = lambda size=4: f"{next(numbers):0{2 * size}x}"
    sys.argv = ["slurm-elastic"]

    def choose(place: Place | None) -> None:
        current[:] = [place] if place else []

    return choose
