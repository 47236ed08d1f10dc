"""The openstack provider keeps the contract on a real control plane; what is nova's own and
glance's, too.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from image.files import qcow2_at
from msgspec.structs import replace
from patience import awake, patience, stretched
from providers.openstack.bed import CREATE
from providers.openstack.stand_in import StandIn

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.base.hostlist import expand
from slurm_elastic.cli.main import main
from slurm_elastic.config import Cluster
from slurm_elastic.config.configfile import load
from slurm_elastic.config.grants import use_of
from slurm_elastic.model.cluster import InstanceState, LaunchSpec
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.protocols import Examinable, Provider, list_tidily
from slurm_elastic.providers import open_images, open_provider
from slurm_elastic.providers.openstack.settings import Flavor
from slurm_elastic.testing.contract import FaultContract, LaunchContract, ScarceContract, spec_for

from .bed import CPUS, MEMORY, PlaneBed
from .plane import ControlPlane

PATIENCE = 120.0
PUBLIC_KEY = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKHEMUoaGpmXUnUJYxwGzHTL7xUZVxvXV3WXvW0CqNhi doctor"
)


@pytest.fixture(scope="module")
def wire(control_plane: ControlPlane) -> Iterator[StandIn]:
    with StandIn(behind=control_plane.place.endpoint("nova")).serving() as running:
        yield running


@pytest.fixture
def bed(control_plane: ControlPlane, wire: StandIn, tmp_path: Path) -> Iterator[PlaneBed]:
    wire.reset()
    made = PlaneBed(control_plane, wire, tmp_path)
    yield made
    made.tidy()


def running(provider: Provider, count: int) -> None:
    until = time.monotonic() + patience(PATIENCE)
    while sum(m.state is InstanceState.RUNNING for m in list_tidily(provider)) < count:
        assert time.monotonic() < until
        time.sleep(0.3)


class TestPlane:
    """Of the contract the way of a launch, its repetition and its end."""

    test_a_launch_starts_a_machine_for_each_node = (
        LaunchContract.test_a_launch_starts_a_machine_for_each_node
    )
    test_a_repeated_launch_returns_the_first_ones_machines = (
        LaunchContract.test_a_repeated_launch_returns_the_first_ones_machines
    )
    test_terminate_ends_exactly_these = LaunchContract.test_terminate_ends_exactly_these
    test_machines_of_others_are_neither_listed_nor_touched = (
        LaunchContract.test_machines_of_others_are_neither_listed_nor_touched
    )


@pytest.mark.release
class TestPlaneLaunches(LaunchContract): ...


@pytest.mark.release
class TestPlaneScarcity(ScarceContract):
    def test_what_is_ended_can_be_had_again(self, bed: PlaneBed) -> None:
        """As soon as the host has ended it: nova answers before."""
        bed.limit(1)
        provider = bed.open()
        first = provider.launch(spec_for(bed, provider, 1))
        provider.terminate([first[0].id])
        bed.admin.wait(bed.admin.is_empty, "the machine is gone")
        assert provider.launch(spec_for(bed, provider, 1, generation="g2"))


@pytest.mark.release
class TestPlaneFaults(FaultContract):
    asks_for_notices = False


@pytest.mark.release
class TestPlaneLags:
    """The wire before nova has its lists lack what is fresh."""

    @pytest.fixture(autouse=True)
    def hidden(self, bed: PlaneBed) -> None:
        bed.wire.world.visible_after = 1e6

    def found(self, bed: PlaneBed, spec: LaunchSpec, *providers: Provider) -> None:
        """Nobody orders it again, and with the lists up to date everybody has the first
        machines.
        """
        started = bed.alive()
        assert len(started) == len(spec.nodes)
        for provider in providers:
            with pytest.raises(UnsettledError, match="lists may lack them yet"):
                provider.launch(spec)
        bed.wire.world.visible_after = 0.0
        for provider in providers:
            assert {m.id for m in provider.launch(spec)} == started
        assert bed.alive() == started
        assert bed.wire.calls(CREATE) == 1

    def test_an_order_without_an_answer_is_not_repeated_while_lists_lag(
        self, bed: PlaneBed
    ) -> None:
        provider = bed.open(listing_lag=600.0)
        spec = spec_for(bed, provider, 2)
        bed.lose_answers()
        with pytest.raises(TransientError):
            provider.launch(spec)
        bed.heal()
        self.found(bed, replace(spec, is_repeated=True), provider, bed.open(listing_lag=600.0))

    def test_an_order_that_was_taken_and_is_not_listed_is_not_repeated_either(
        self, bed: PlaneBed
    ) -> None:
        provider = bed.open(listing_lag=600.0, schedule_timeout=1.0)
        spec = spec_for(bed, provider, 2)
        with pytest.raises(TransientError, match="NotListed"):
            provider.launch(spec)
        self.found(bed, spec, provider)


class TestNova:
    @pytest.mark.release
    def test_many_machines_of_one_call_over_several_pages(self, bed: PlaneBed) -> None:
        """nova shows 5 servers in an answer here; in its own words each knows its place."""
        provider = bed.open(timeout=120.0)
        spec = spec_for(bed, provider, 12)
        machines = provider.launch(spec)
        assert tuple(m.node for m in machines) == spec.nodes
        assert bed.wire.calls(CREATE) == 1
        found = list_tidily(bed.open())
        assert {(m.id, m.node) for m in found} == {(m.id, m.node) for m in machines}
        nodes = {m.id: m.node for m in machines}
        for server in bed.admin.servers().values():
            assert nodes[server.id] == spec.nodes[server.launch_index]
        running(provider, 12)
        provider.terminate([m.id for m in machines])
        assert bed.alive() == set()

    def test_a_quota_cuts_and_then_refuses_in_novas_words(self, bed: PlaneBed) -> None:
        bed.admin.quota(instances=2)
        provider = bed.open()
        (offer,) = provider.offers(bed.pool)
        assert (offer.free, offer.free_reason) == (
            2, "the project's quota of instances is 2 and 0 are used",
        )  # fmt: skip
        assert len(provider.launch(spec_for(bed, provider, 5))) == 2
        with pytest.raises(QuotaError) as caught:
            provider.launch(spec_for(bed, provider, 1, generation="g2"))
        assert caught.value.code == "instances-quota"
        words = "Quota exceeded for instances: Requested 1, but already used 2 of 2 instances"
        assert caught.value.message == words
        assert len(bed.alive()) == 2

    @pytest.mark.release
    def test_a_quota_that_leaves_one_of_many(self, bed: PlaneBed) -> None:
        bed.admin.quota(instances=1)
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 3))
        assert machine.node == "os1"
        assert [m.node for m in list_tidily(provider)] == ["os1"]

    def test_no_valid_host(self, bed: PlaneBed) -> None:
        bed.limit(0)
        provider = bed.open()
        with pytest.raises(CapacityError) as caught:
            provider.launch(spec_for(bed, provider, 2))
        assert (caught.value.code, caught.value.message) == (
            "NoValidHost", "No valid host was found.",
        )  # fmt: skip
        assert bed.alive() == set()

    @pytest.mark.release
    def test_a_hypervisor_that_gives_up(self, bed: PlaneBed) -> None:
        """The scheduler found a host; what comes then is seen with the list."""
        bed.plane.hypervisor(broken="the disk of the host is full")
        provider = bed.open()
        told: list[str] = []
        try:
            provider.launch(spec_for(bed, provider, 1))
        except CapacityError as error:
            told.append(str(error))
        until = time.monotonic() + patience(PATIENCE)
        while bed.alive():
            assert time.monotonic() < until
            list_tidily(provider)
            time.sleep(0.3)
        bed.plane.hypervisor()
        if not told:
            with pytest.raises(CapacityError) as caught:
                provider.launch(spec_for(bed, provider, 1, generation="g2"))
            told.append(str(caught.value))
        assert "the disk of the host is full" in told[0]
        assert provider.launch(spec_for(bed, provider, 1, generation="g3"))

    @pytest.mark.release
    def test_a_machine_that_boots_slowly_can_be_ended(self, bed: PlaneBed) -> None:
        bed.plane.hypervisor(held=True)
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        assert machine.state is InstanceState.PENDING
        provider.terminate([machine.id])
        bed.plane.hypervisor()
        # nova lets the boot end first, and then shows a machine as if nothing had been asked.
        bed.admin.wait(bed.admin.is_empty, "the machine is gone")

    @pytest.mark.release
    def test_what_nova_refuses_is_said_in_its_words(self, bed: PlaneBed) -> None:
        provider = bed.open(zones=("no-such-zone",))
        with pytest.raises(ProviderError, match="availability zone is not available"):
            provider.launch(spec_for(bed, provider, 1))
        provider = bed.open(key_name="no-such-key")
        with pytest.raises(ProviderError, match="key_name"):
            provider.launch(spec_for(bed, provider, 1, generation="g2"))
        assert bed.alive() == set()

    @pytest.mark.release
    def test_two_clouds_of_two_projects(self, bed: PlaneBed) -> None:
        identity = bed.admin.cloud.identity
        project = identity.create_project(name="chemistry", domain_id="default")
        member = identity.find_role("member")
        bed.admin.add_user("chemist", project, [member], password="another-test-password")
        first = bed.open()
        mine = first.launch(spec_for(bed, first, 1))
        bed.login(username="chemist", project_name="chemistry", password="another-test-password")
        second = open_provider(
            msgspec.structs.replace(bed.settings(), name="second"),
            Cluster(name="site", uuid="2" * 8),
        )
        spec = LaunchSpec(
            generation="g1", pool=bed.pool, nodes=("os9",), offer=second.offers(bed.pool)[0]
        )
        theirs = second.launch(spec)
        try:
            assert {m.id for m in list_tidily(first)} == {m.id for m in mine}
            assert {m.id for m in list_tidily(second)} == {m.id for m in theirs}
            second.terminate([m.id for m in mine])
            assert {m.id for m in mine} <= bed.alive()
        finally:
            second.terminate([m.id for m in theirs])

    @pytest.mark.release
    def test_a_host_in_maintenance_is_a_notice_to_whom_nova_shows_it(self, bed: PlaneBed) -> None:
        """Its ``host_status`` is for administrators, unless the site's policy says otherwise."""
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        running(provider, 1)
        bed.admin.add_operator("operator")
        bed.admin.enable_host(enabled=False)
        try:
            assert list(provider.notices()) == []
            bed.login(username="operator")
            (notice,) = bed.open().notices()
            assert (notice.instance, notice.deadline) == (machine.id, None)
        finally:
            bed.admin.enable_host(enabled=True)
        assert list(bed.open().notices()) == []

    def test_a_wrong_password(self, bed: PlaneBed) -> None:
        bed.login(password="not-the-password")
        with pytest.raises(AuthError) as caught:
            bed.open().check()
        assert caught.value.code == "Unauthorized"
        assert "requires authentication" in caught.value.message

    @pytest.mark.release
    def test_a_nova_that_hangs_holds_nobody(self, bed: PlaneBed) -> None:
        provider = bed.open(timeout=3.0)
        spec = spec_for(bed, bed.open(), 1)  # which nova may take its time to answer
        pid = bed.plane.pid("nova-api")
        os.kill(pid, signal.SIGSTOP)
        try:
            for call in (provider.instances, provider.check, lambda: provider.launch(spec)):
                with awake() as took:
                    with pytest.raises(TransientError):
                        call()
                    assert took() < stretched(10)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert bed.open().launch(spec)


class TestDoctor:
    """On the real services; the network service is the set-up's own and has nothing in it."""

    def examined(self, bed: PlaneBed, **settings: object) -> dict[str, Finding]:
        provider = bed.open(**settings)
        assert isinstance(provider, Examinable)
        return {f.subject: f for f in provider.examine([bed.pool])}

    def test_a_cloud_where_all_is_well(self, bed: PlaneBed) -> None:
        found = self.examined(bed, zones=("nova",))
        assert {f.level for f in found.values()} == {FindingLevel.OK}
        assert found["flavors"].observed == "as configured: small"
        assert found["image worker"].observed.startswith("active, worker (")
        assert "'none'" in found["networks"].observed
        assert found["zone nova"].observed == "available"
        assert found["quota of instances"].observed == "none is set"

    @pytest.mark.release
    def test_what_is_not_there_is_named(self, bed: PlaneBed) -> None:
        found = self.examined(
            bed,
            image="nobody-has-it",
            types={"small": Flavor(cpus=CPUS, memory=MEMORY), "big": Flavor(cpus=1, memory=1)},
            key_name="no-such-key",
            security_groups=("web",),
            networks=("lan",),
            zones=("no-such-zone",),
        )
        wrong = {what for what, f in found.items() if f.level is FindingLevel.WRONG}
        assert wrong == {
            "flavor big", "image nobody-has-it", "key pair no-such-key", "security group web",
            "network lan", "zone no-such-zone",
        }  # fmt: skip
        assert all(found[what].advice and found[what].expected for what in wrong)

    @pytest.mark.release
    def test_an_image_that_is_too_large_for_the_flavor(self, bed: PlaneBed) -> None:
        """nova refuses the launch, and doctor says so before."""
        images = bed.admin.cloud.image
        made = images.create_image(
            name="large", disk_format="raw", container_format="bare", visibility="public",
            min_ram=2 * MEMORY, data=b"\0" * 1024, validate_checksum=False,
        )  # fmt: skip
        try:
            found = self.examined(bed, image="large")["image large"]
            assert found.level is FindingLevel.WRONG
            provider = bed.open(image="large")
            with pytest.raises(ProviderError, match="too small"):
                provider.launch(spec_for(bed, provider, 1))
        finally:
            images.delete_image(made.id)

    @pytest.mark.release
    def test_a_key_pair_of_the_account(self, bed: PlaneBed) -> None:
        cloud = bed.admin.connect()
        try:
            cloud.compute.create_keypair(name="doctor", public_key=PUBLIC_KEY)
            found = self.examined(bed, key_name="doctor")["key pair doctor"]
            assert (found.level, found.observed) == (FindingLevel.OK, "there")
        finally:
            cloud.compute.delete_keypair("doctor")
            cloud.close()

    @pytest.mark.release
    def test_quotas_beside_what_the_pools_could_ask_for(self, bed: PlaneBed) -> None:
        bed.admin.quota(instances=5, cores=1, ram=-1)
        try:
            found = self.examined(bed)
        finally:
            bed.admin.quota(cores=-1)
        few = found["quota of instances"]
        assert (few.level, few.observed) == (
            FindingLevel.NOTE, "5 servers, of which others use 0; the pools could ask for 100",
        )  # fmt: skip
        assert found["quota of cores"].level is FindingLevel.WRONG
        assert found["quota of ram"].level is FindingLevel.OK

    @pytest.mark.release
    def test_our_own_machines_are_not_others(self, bed: PlaneBed) -> None:
        bed.admin.quota(instances=100)
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 2))
        assert self.examined(bed)["quota of instances"].level is FindingLevel.OK
        bed.add_foreign()

        def noted() -> bool:
            """nova counts a fresh server when it has been scheduled."""
            found = self.examined(bed)["quota of instances"]
            words = "100 servers, of which others use 1; the pools could ask for 100"
            return (found.level, found.observed) == (FindingLevel.NOTE, words)

        bed.admin.wait(noted, "the other server counts")


# Images in its glance: uploaded by the command, found by requirements, booted by nova. Here, as a
# control plane takes longer to start than they do.


def configured(bed: PlaneBed, tmp_path: Path) -> Path:
    cloud = {
        "name": "stack", "provider": "openstack", "location": "on-premises", "cloud": "site",
        "clouds_file": str(bed.file), "image": "worker", "networks": ["none"],
        "types": {"small": {"cpus": CPUS, "memory": MEMORY}},
    }  # fmt: skip
    image = {"os": "debian", "version": "13", "software": ["slurm-24.11"]}
    pool = {
        "name": "os", "cloud": "stack", "nodes": "os[1-2]", "cpus": CPUS, "memory": 3000,
        "image": image, "instance_types": ["small"],
    }  # fmt: skip
    document = {
        "cluster": {"name": "site", "uuid": "2b0e5f6c-0000-4000-8000-000000000001"},
        "allow": {"accounts": ["physics"]}, "limits": {"nodes": 4},
        "clouds": [cloud], "pools": [pool, pool | {"name": "old", "nodes": "old1", "image": None}],
    }  # fmt: skip
    del document["pools"][1]["image"]
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(json.dumps(document))
    return path


def test_an_image_goes_up_once_is_found_and_a_machine_starts_from_it(
    bed: PlaneBed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = qcow2_at(tmp_path), configured(bed, tmp_path)

    def image(*words: object) -> str:
        assert main(["--config", str(config), "image", *map(str, words)]) == 0
        return capsys.readouterr().out

    assert "would name it slurm-24.11.5" in image("upload", "stack", path, "--dry-run")
    assert "no image has os debian" in image("list", "stack")
    told = image("upload", "stack", path)
    assert "active, sha512 and size are those of the file" in told
    assert "there already" in image("upload", "stack", path)

    made = load(config)
    cloud = made.clouds[0]
    pool = use_of(made, cloud, expand).pools[0]
    (number,) = [i.id for i in open_images(cloud, made.cluster).images() if i.digest]
    lines = image("list", "stack").splitlines()
    assert lines[0].split() == ["NAME", "ID", "SLURM", "SYSTEM", "SIZE", "AGE", "POOLS"]
    rows = {line.split()[0]: line for line in lines[1:]}
    row = rows["slurm-24.11.5-debian-13.1-20261101"]
    assert row.split()[1:] == [number, "24.11.5", "debian", "13.1", "1", "MiB", "0", "d", "os"]
    assert rows["worker"].endswith(" old")

    found = bed.admin.cloud.image.get_image(number)
    assert (found.visibility, found.status) == ("private", "active")
    provider = open_provider(cloud, made.cluster, made)
    offer = provider.offers(pool)[0]
    spec = LaunchSpec(generation="g1", pool=pool, nodes=pool.nodes[:1], offer=offer)
    (machine,) = provider.launch(spec)
    assert bed.admin.cloud.compute.get_server(machine.id).image.id == number
    provider.terminate([machine.id])


@pytest.mark.release
def test_who_may_make_no_images_is_told_in_glances_words(
    bed: PlaneBed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.login(password="not-the-password")
    path, config = qcow2_at(tmp_path), configured(bed, tmp_path)
    assert main(["--config", str(config), "image", "upload", "stack", str(path)]) == 1
    assert "requires authentication" in capsys.readouterr().err
