"""The opennebula provider's cloud for tests: the emulated front end."""

from __future__ import annotations

import time
import xmlrpc.client
from collections.abc import Callable
from pathlib import Path

from patience import eventually, patience

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.sandbox.nebula.world import Net, OneHost, OnePace, OneUser, OneWorld, vm_template
from slurm_elastic.testing.contract import UUID

NAME = "one"
INSTANTIATE = "one.template.instantiate"
ENDING = ((3, 12), (3, 11))
KINDS = {
    CapacityError: Fault(kind=FaultKind.CAPACITY),
    QuotaError: Fault(kind=FaultKind.QUOTA),
    AuthError: Fault(kind=FaultKind.AUTH),
    TransientError: Fault(kind=FaultKind.THROTTLE),
}
FAST = OnePace(schedule=0.2, boot=0.2, shutdown=0.1)


def world() -> OneWorld:
    """Plenty of room; the administrator sees the hosts, elastic does not."""
    return OneWorld(
        users=[
            OneUser(id=0, name="oneadmin", password="adminpw", gid=0, group="oneadmin"),
            OneUser(id=2, name="elastic", password="secretpw"),
        ],
        templates=[vm_template(0, "worker", 2, 4096), vm_template(1, "huge", 900, 64, net=None)],
        hosts=[OneHost(id=0, name="big", cpu=10**6, memory=10**10)],
        nets=[Net(id=0, name="lan", size=5000)],
        pace=FAST,
    )


class OneBed:
    pool = Pool(
        name="op",
        cloud=NAME,
        nodes=tuple(f"op{n}" for n in range(1, 1201)),
        cpus=2,
        real_memory=3000,
        instance_types=("small",),
        markets=(Market.RESERVED,),
    )

    def __init__(self, control: OneControl, directory: Path, user: str = "oneadmin") -> None:
        control.reset(world())
        self.control = control
        self.auth = directory / "one_auth"
        self.login(user, "adminpw" if user == "oneadmin" else "secretpw")

    def login(self, user: str, password: str) -> None:
        self.auth.touch(mode=0o600)
        self.auth.write_text(f"{user}:{password}\n")

    def settings(self, **more: object) -> OpenNebulaCloud:
        values: dict[str, object] = {
            "endpoint": self.control.endpoint,
            "auth_file": str(self.auth),
            "types": {"small": OneTemplate(cpus=2, memory=4096, template=0, price=0.02)},
        }
        return OpenNebulaCloud(name=NAME, location=Location.ON_PREMISES, **(values | more))

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> Provider:
        return open_provider(
            self.settings(api_timeout=timeout, **more), Cluster(name="site", uuid=uuid)
        )

    def alive(self) -> set[str]:
        """Waits until machines on their way out are gone: they are as good as ended."""
        machines = self.control.state().machines
        deadline = time.monotonic() + patience(30)
        while any(m.ending or (m.state, m.lcm) in ENDING for m in machines):
            assert time.monotonic() < deadline
            time.sleep(0.02)
            machines = self.control.state().machines
        return {f"{NAME}-{m.id}" for m in machines if m.state != 6}

    def add_foreign(self) -> set[str]:
        with xmlrpc.client.ServerProxy(self.control.endpoint) as server:
            answer = server.one.template.instantiate(self.auth.read_text().strip(), 0, "theirs")
        assert answer[0] is True
        return {f"{NAME}-{answer[1]}"}

    def limit(self, count: int) -> None:
        self.control.hosts([OneHost(id=0, name="small", cpu=200 * count, memory=10**10)])

    def fail_late(self, node: str) -> Callable[[], None]:
        self.control.pace(OnePace(schedule=0.1, boot=0.2, shutdown=0.1, broken=f"{node}-*"))
        return lambda: eventually(self._has_broken)

    def _has_broken(self) -> bool:
        return any((m.state, m.lcm) == (3, 36) for m in self.control.state().machines)

    def fail(self, error: type[ProviderError]) -> None:
        self.control.fail(KINDS[error])

    def heal(self) -> None:
        self.control.heal()

    def lose_answers(self) -> None:
        self.control.fail(Fault(kind=FaultKind.RESET_AFTER, action=INSTANTIATE))

    def fall_silent(self) -> None:
        self.control.fail(Fault(kind=FaultKind.TIMEOUT_BEFORE, seconds=15))

    def hide_fresh(self, seconds: float) -> None:
        self.control.pace(OnePace(schedule=0.2, boot=0.2, shutdown=0.1, visible_after=seconds))

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def calls(self, method: str) -> int:
        return self.control.state().calls.get(method, 0)

    def running(self, count: int) -> None:
        """Wait until so many are RUNNING."""
        deadline = time.monotonic() + patience(30)
        while sum((m.state, m.lcm) == (3, 3) for m in self.control.state().machines) < count:
            assert time.monotonic() < deadline
            time.sleep(0.02)
