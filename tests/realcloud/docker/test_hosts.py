"""Two real engines as the hosts of one cloud: one by its socket, one by TCP with TLS."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, CapacityError, ProviderError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec, Location, Market, Pool
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.model.protocols import list_tidily
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.docker.provider import DockerProvider
from slurm_elastic.providers.docker.settings import DockerCloud, DockerHost, DockerType
from slurm_elastic.testing.contract import UUID

from .certificates import Authority
from .engine import Engine, NoEngine
from .far_engine import FarEngine, running_far_engine
from .two_hosts_world import FAR_SLOTS, TwoHostsWorld
from .world import wait_for

pytestmark = pytest.mark.release

NAME, NEAR, FAR = "boxes", "near", "far"
POOL = Pool(
    name="box", cloud=NAME, nodes=tuple(f"bx{n}" for n in range(1, 9)), cpus=1, real_memory=64,
    instance_types=("small",), markets=(Market.RESERVED,),
)  # fmt: skip


class TwoHosts:
    """A cluster of its own, with a network of one name on both; its machines sleep."""

    def __init__(self, near: Engine, far: FarEngine, image: str) -> None:
        self.near, self.far, self.image = near, far, image
        self.id = f"hosts{secrets.token_hex(4)}"
        self.uuid = f"{UUID[:-8]}{self.id[-8:]}"
        with self._clients() as clients:
            for client in clients.values():
                client.networks.create(self.id)

    def open(self, far: DockerHost | None = None, **more: Any) -> DockerProvider:
        """A daemon's provider that has seen nothing yet."""
        hosts = {
            FAR: far or self.far.host(cpus=FAR_SLOTS),
            NEAR: DockerHost(url=self.near.url, cpus=1000, memory=10**6),
        }
        values: dict[str, Any] = {
            "hosts": hosts, "image": self.image, "network": self.id, "api_timeout": 60.0,
            "types": {"small": DockerType(cpus=1, memory=64)}, "command": ("sleep", "infinity"),
        }  # fmt: skip
        cloud = DockerCloud(name=NAME, location=Location.ON_PREMISES, **(values | more))
        provider = open_provider(cloud, Cluster(name="site", uuid=self.uuid))
        assert isinstance(provider, DockerProvider)
        return provider

    def running(self) -> dict[str, set[str]]:
        """The containers that run in the network, by host, as the engines themselves list them."""
        with self._clients() as clients:
            return {
                host: {c.id[:12] for c in _attached(client, self.id) if c.status == "running"}
                for host, client in clients.items()
            }

    def add_foreign(self) -> str:
        """A container on the far host that nobody's labels are on."""
        with self._clients() as clients:
            made = clients[FAR].containers.run(
                self.image, ["sleep", "infinity"], detach=True, init=True, network=self.id
            )
        return str(made.id[:12])

    def close(self) -> None:
        if not self.far.up:
            self.far.start()
        self.far.wake()
        with self._clients() as clients:
            for client in clients.values():
                for container in _attached(client, self.id):
                    container.remove(force=True, v=True)
                client.networks.get(self.id).remove()

    @contextlib.contextmanager
    def _clients(self) -> Iterator[dict[str, Any]]:
        with (
            contextlib.closing(self.near.client()) as near,
            contextlib.closing(self.far.client()) as far,
        ):
            yield {NEAR: near, FAR: far}


@pytest.fixture(scope="module")
def far(docker_engine: Engine, trixie: str) -> Iterator[FarEngine]:
    try:
        with running_far_engine(docker_engine, trixie) as engine:
            yield engine
    except NoEngine as reason:
        pytest.skip(f"no second Docker engine: {reason}")


@pytest.fixture
def two(docker_engine: Engine, far: FarEngine, trixie: str) -> Iterator[TwoHosts]:
    made = TwoHosts(docker_engine, far, trixie)
    yield made
    made.close()


class TestTwoHosts:
    def test_machines_are_spread_by_slots_and_end_by_their_ids(self, two: TwoHosts) -> None:
        provider = two.open()
        provider.check()
        stranger = two.add_foreign()
        free = {o.zone: o.free for o in provider.offers(POOL)}
        assert free[FAR] == FAR_SLOTS
        first = provider.launch(spec(provider, FAR, "bx1", "bx2", "bx3"))
        assert [m.node for m in first] == ["bx1", "bx2"]  # no third slot
        assert {o.zone: o.free for o in provider.offers(POOL)}[FAR] == 0
        with pytest.raises(CapacityError, match="far: 2 of 2 cpus are given out"):
            provider.launch(spec(provider, FAR, "bx3", generation="g2"))
        second = provider.launch(spec(provider, NEAR, "bx3", "bx4", generation="g3"))
        ids = {FAR: ids_of(first), NEAR: ids_of(second)}
        assert two.running() == {FAR: ids[FAR] | {stranger}, NEAR: ids[NEAR]}

        fresh = two.open()  # a daemon that was started anew
        seen = list_tidily(fresh)
        assert {m.node: m.zone for m in seen} == {"bx1": FAR, "bx2": FAR, "bx3": NEAR, "bx4": NEAR}
        assert {m.state for m in seen} == {InstanceState.RUNNING}
        assert all(m.address for m in seen)
        fresh.terminate([*ids_of(first[:1]), *ids_of(second[:1])])
        left = {FAR: ids_of(first[1:]) | {stranger}, NEAR: ids_of(second[1:])}
        wait_for(lambda: two.running() == left, "one has ended on each host", lambda: "")
        two.open().terminate([*ids_of(first), *ids_of(second), stranger])
        wait_for(
            lambda: two.running() == {FAR: {stranger}, NEAR: set()}, "the others, too", lambda: ""
        )
        wait_for(lambda: not list_tidily(fresh), "none is listed", lambda: "")

    def test_doctor_sees_both(self, two: TwoHosts) -> None:
        found = two.open().examine(())
        assert {f.level for f in found} == {FindingLevel.OK}
        assert {f.subject for f in found} >= {"host near", "host far", f"network {two.id} on far"}


class TestCertificates:
    @pytest.fixture
    def other(self, tmp_path: Path) -> Authority:
        return Authority(tmp_path / "other", "somebody else")

    def refused(self, two: TwoHosts, host: DockerHost, why: str) -> None:
        """Nothing starts on that host, no list is made up, and the other one goes on."""
        provider = two.open(host)
        good = spec(two.open(), FAR, "bx1")
        for call in (provider.check, provider.instances, lambda: provider.launch(good)):
            with pytest.raises(AuthError, match=why):
                call()
        assert [o.zone for o in provider.offers(POOL)] == [NEAR]
        (machine,) = provider.launch(spec(provider, NEAR, "bx1", generation="g2"))
        assert two.running() == {FAR: set(), NEAR: {machine.id}}
        said = next(f for f in provider.examine(()) if f.subject == "host far")
        assert said.level is FindingLevel.WRONG
        assert "Certificate: far: " in said.observed

    def test_a_client_of_another_authority(self, two: TwoHosts, other: Authority) -> None:
        cert_file, key_file = other.client()
        host = replace(two.far.host(), cert_file=cert_file, key_file=key_file)
        self.refused(two, host, "^boxes: Certificate: far: it refuses our certificate")

    def test_a_client_whose_certificate_has_expired(self, two: TwoHosts) -> None:
        cert_file, key_file = two.far.authority.client("old", expired=True)
        host = replace(two.far.host(), cert_file=cert_file, key_file=key_file)
        self.refused(two, host, "it refuses our certificate .*: cert_file has expired, or")

    def test_a_server_of_another_authority(self, two: TwoHosts, other: Authority) -> None:
        host = replace(two.far.host(), ca_file=other.ca_file)
        self.refused(two, host, "its certificate is refused: unable to get local issuer .*ca_file")

    def test_a_server_of_another_name(self, two: TwoHosts) -> None:
        host = two.far.host()
        host = replace(host, url=host.url.replace("127.0.0.1", "localhost"))
        self.refused(two, host, "certificate is not valid for 'localhost'")

    def test_no_certificate(self, two: TwoHosts) -> None:
        host = DockerHost(url=two.far.host().url, cpus=FAR_SLOTS, memory=10**6)
        self.refused(two, host, "NoCertificate: far: .*ca_file, cert_file and key_file")


class TestAHostIsAway:
    @pytest.fixture
    def machines(self, two: TwoHosts) -> dict[str, Instance]:
        """One on each host, by host."""
        provider = two.open()
        specs = (spec(provider, FAR, "bx1"), spec(provider, NEAR, "bx2", generation="g2"))
        return {m.zone: m for s in specs for m in provider.launch(s)}

    def test_nothing_is_told_gone_and_all_is_there_afterwards(
        self, two: TwoHosts, machines: dict[str, Instance]
    ) -> None:
        daemon = two.open()
        before = {m.id: m for m in list_tidily(daemon)}
        far_spec = spec(daemon, FAR, "bx3", generation="g3")
        two.far.stop()
        fresh = two.open()
        for provider in (daemon, fresh):
            with pytest.raises(TransientError, match="far: no engine listens there"):
                list_tidily(provider)
            assert [o.zone for o in provider.offers(POOL)] == [NEAR]
            with pytest.raises(TransientError):  # not "it is done"
                provider.terminate([machines[FAR].id])
            with pytest.raises(TransientError):
                provider.launch(far_spec)
        (late,) = daemon.launch(spec(daemon, NEAR, "bx4", generation="g4"))
        two.open().terminate([machines[NEAR].id, machines[NEAR].id])  # found, though far is away
        two.far.start()
        want = {FAR: {machines[FAR].id}, NEAR: {late.id}}
        wait_for(lambda: two.running() == want, "what ran on the far host runs", lambda: "")
        after = {m.id: m for m in list_tidily(daemon)}
        assert after[machines[FAR].id] == before[machines[FAR].id]
        (again,) = daemon.launch(far_spec)
        assert (again.node, again.zone) == ("bx3", FAR)
        assert ids_of(fresh.launch(far_spec)) == {again.id}
        assert two.running()[FAR] == {machines[FAR].id, again.id}

    def test_one_that_says_nothing_costs_the_time_out_and_no_machine(
        self, two: TwoHosts, machines: dict[str, Instance]
    ) -> None:
        provider = two.open(api_timeout=15.0)
        ids = ids_of(list_tidily(provider))
        two.far.freeze()
        with pytest.raises(TransientError):
            list_tidily(provider)
        assert [o.zone for o in provider.offers(POOL)] == [NEAR]
        two.far.wake()
        assert ids_of(list_tidily(two.open())) == ids

    def test_ended_with_its_host_a_machine_is_none_any_more(
        self, two: TwoHosts, machines: dict[str, Instance]
    ) -> None:
        """As after a restart of the host: containers that must not be restarted are ended."""
        provider = two.open()
        assert len(list_tidily(provider)) == 2
        two.far.stop()
        two.far.start(live_restore=False)
        left = {machines[NEAR].id}
        wait_for(lambda: ids_of(list_tidily(provider)) == left, "the near one is left", lambda: "")
        with pytest.raises(ProviderError, match="have ended"):  # a late repetition
            provider.launch(spec(provider, FAR, "bx1"))
        (fresh,) = provider.launch(spec(provider, FAR, "bx1", generation="g5"))
        assert two.running() == {FAR: {fresh.id}, NEAR: left}


def spec(provider: DockerProvider, host: str, *nodes: str, generation: str = "g1") -> LaunchSpec:
    offer = next(o for o in provider.offers(POOL) if o.zone == host)
    return LaunchSpec(generation=generation, pool=POOL, nodes=nodes, offer=offer)


def ids_of(machines: Any) -> set[str]:
    return {m.id for m in machines}


def _attached(client: Any, network: str) -> list[Any]:
    found: list[Any] = client.containers.list(
        all=True, filters={"network": network}, ignore_removed=True
    )
    return found


@pytest.fixture(scope="class")
def world(docker_engine: Engine, far: FarEngine, trixie: str) -> Iterator[TwoHostsWorld]:
    with TwoHostsWorld(docker_engine, far, trixie) as running:
        yield running


@pytest.mark.e2e
class TestACluster:
    def test_jobs_run_on_both_hosts(self, world: TwoHostsWorld) -> None:
        go = world.shared / "jobs" / "go"
        wait = "hostname; while [ ! -e go ]; do sleep 0.2; done"
        jobs = [world.sbatch(wait, "-o", "out-%j") for _ in range(4)]
        outputs = [world.shared / "jobs" / f"out-{job}" for job in jobs]
        world.wait_for(lambda: all(o.exists() and o.read_text() for o in outputs), "all run")
        assert world.running_by_host() == {"far": FAR_SLOTS, "near": 2}
        go.touch()
        ran = [world.wait_job(job)["NodeList"] for job in jobs]
        assert [o.read_text() for o in outputs] == [f"{node}\n" for node in ran]
        assert len(set(ran)) == 4
        world.back_to_zero()

    def test_one_job_spans_both_hosts(self, world: TwoHostsWorld) -> None:
        script = "srun -l hostname; touch spanned; while [ ! -e counted ]; do sleep 0.2; done"
        job = world.sbatch(script, "-N4", "-o", "out-%j")
        spanned = world.shared / "jobs" / "spanned"
        world.wait_for(spanned.exists, "it has run on all four")
        assert world.running_by_host() == {"far": FAR_SLOTS, "near": 2}
        (world.shared / "jobs" / "counted").touch()
        world.wait_job(job)
        lines = (world.shared / "jobs" / f"out-{job}").read_text().split()
        assert len(set(lines[1::2])) == 4
        assert "boxes/small/far/" in world.elastic("explain", str(job))
        world.back_to_zero()

    def test_while_a_host_is_away_its_jobs_go_on_and_new_ones_run_on_the_other(
        self, world: TwoHostsWorld
    ) -> None:
        jobs = world.shared / "jobs"
        stays = world.sbatch(
            "hostname; while [ ! -e end ]; do sleep 0.2; done", "-p", "boxes", "-o", "out-%j"
        )
        world.wait_for(lambda: (jobs / f"out-{stays}").exists(), "the first one runs")
        assert world.running_by_host() == {"far": 1}
        world.far.stop()
        later = world.sbatch("hostname", "-p", "boxes", "-o", "out-%j")
        node = world.wait_job(later)["NodeList"]
        world.wait_for(lambda: not world.running(), "the near one's machine has ended again")
        here = {c.labels["slurm-elastic.node"] for c in world.machines()}
        assert node in here
        shown = world.job(stays)
        assert (shown["JobState"], shown["Restarts"]) == ("RUNNING", "0")
        world.far.start(world.gateway)
        assert world.running_by_host() == {"far": 1}
        (jobs / "end").touch()
        assert world.wait_job(stays)["Restarts"] == "0"
        world.back_to_zero()
