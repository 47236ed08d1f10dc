"""OpenStack's behaviour: the scheduler's word, quotas, names, states, credentials, redaction."""

from __future__ import annotations

import base64
import json
import logging
import random
import runpy
from pathlib import Path

import pytest
from msgspec.structs import replace
from providers.openstack.bed import CREATE, LIST, NAME, StackBed
from providers.openstack.stand_in import IMAGE, NO_HOST, Kind

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import InstanceState, LaunchSpec, Location, Market, Offer
from slurm_elastic.model.machine_options import Disk, MachineOptions
from slurm_elastic.model.protocols import list_tidily
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.base.user_data import program
from slurm_elastic.providers.openstack import boothook, requests
from slurm_elastic.providers.openstack.capacity import room
from slurm_elastic.providers.openstack.catalog import Catalog
from slurm_elastic.providers.openstack.convert import STATES, servers, state_of
from slurm_elastic.providers.openstack.errors import classify, from_fault, sentence
from slurm_elastic.providers.openstack.provider import OpenStackProvider
from slurm_elastic.providers.openstack.settings import Flavor
from slurm_elastic.testing.contract import OTHER_UUID, UUID, spec_for

pytestmark = pytest.mark.usefixtures("guarded")

OFFER = Offer(
    cloud=NAME, location=Location.ON_PREMISES, instance_type="small", zone="default",
    market=Market.RESERVED, price=0.02, cpus=2, memory=4096,
)  # fmt: skip


def launch(bed: StackBed, count: int = 1, generation: str = "g1", **more: object):
    provider = bed.open(**more)
    return provider.launch(spec_for(bed, provider, count, generation=generation))


def test_a_pool_may_have_a_server_group_and_a_volume(
    bed: StackBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute API, "Create Server": a volume made of the image has no imageRef beside it."""
    bodies = []
    group = "0b9d8a4e-5f0e-4f5c-8a33-0a5f6f1f0b52"
    root = Disk(size=40 * 1024, type="ssd")
    plain, pool = (
        bed.pool,
        replace(bed.pool, machine=MachineOptions(root_disk=root, placement_group=group)),
    )
    provider = bed.open()
    real = provider._call

    def call(service, method, path, body=None, *more):
        if (method, path) == ("POST", "/servers"):
            bodies.append(body)
        return real(service, method, path, body, *more)

    monkeypatch.setattr(provider, "_call", call)
    assert provider.recipe(plain) != provider.recipe(pool)
    provider.launch(replace(spec_for(bed, provider, 1), pool=pool))
    (body,) = bodies
    assert body["os:scheduler_hints"] == {"group": group}
    assert body["server"]["imageRef"] == ""
    assert body["server"]["block_device_mapping_v2"] == [{
        "boot_index": 0, "uuid": IMAGE, "source_type": "image", "destination_type": "volume",
        "delete_on_termination": True, "volume_size": 40, "volume_type": "ssd",
    }]  # fmt: skip


def test_servers_are_listed_with_the_image_of_their_pool(bed: StackBed) -> None:
    launch(bed)
    provider = bed.open()
    (machine,) = list_tidily(provider)
    assert machine.image == provider.image_for(bed.pool) == IMAGE


class TestScheduler:
    def test_no_valid_host_is_a_capacity_error_and_leaves_nothing(self, bed: StackBed) -> None:
        bed.limit(0)
        with pytest.raises(CapacityError) as caught:
            launch(bed)
        assert (caught.value.code, caught.value.message) == ("NoValidHost", NO_HOST.strip())
        assert bed.alive() == set()

    @pytest.mark.parametrize(("room_for", "wanted"), [(2, 5), (1, 3), (7, 8), (3, 64), (63, 64)])
    def test_a_call_without_room_is_halved_until_the_room_is_found(
        self, bed: StackBed, room_for: int, wanted: int
    ) -> None:
        bed.limit(room_for)
        machines = launch(bed, wanted)
        assert tuple(m.node for m in machines) == bed.pool.nodes[:room_for]
        assert {m.id for m in machines} == bed.alive()
        assert bed.stand_in.calls(CREATE) <= 2 * wanted.bit_length()

    def test_it_is_tried_with_half_as_many_each_time(self, bed: StackBed) -> None:
        bed.limit(3)
        assert len(launch(bed, 16)) == 3
        assert [order["max_count"] for order in bed.world.bodies] == [16, 8, 4, 2, 1]

    def test_what_is_being_deleted_is_none_of_the_machines_of_the_next_call(
        self, bed: StackBed
    ) -> None:
        """It has the same node, and nova lists it for a while, and the new one not yet."""
        bed.limit(1)
        bed.world.delete_lags = True
        original = bed.stand_in.struck

        def struck(request: str):
            if request == CREATE and bed.stand_in.calls(CREATE) == 2:
                bed.world.visible_after = 1.0
            return original(request)

        bed.stand_in.struck = struck  # type: ignore[method-assign]
        try:
            (machine,) = launch(bed, 2, schedule_timeout=120.0)
        finally:
            bed.stand_in.struck = original  # type: ignore[method-assign]
        assert bed.world.servers[machine.id]["status"] == "ACTIVE"

    def test_another_fault_is_not_tried_with_fewer(self, bed: StackBed) -> None:
        bed.limit(0)
        bed.world.fault_text = "Build of instance x aborted: the image is broken"
        with pytest.raises(CapacityError, match="the image is broken") as caught:
            launch(bed, 4)
        assert caught.value.code == "BuildFailed"
        assert bed.stand_in.calls(CREATE) == 1

    def test_the_scheduler_is_waited_for_and_no_longer_than_said(self, bed: StackBed) -> None:
        bed.world.schedule = 1.0
        bed.limit(0)
        with pytest.raises(CapacityError):
            launch(bed)
        bed.world.schedule = 1000.0
        (machine,) = launch(bed, generation="g2", schedule_timeout=0.5)
        assert machine.state is InstanceState.PENDING

    def test_a_start_that_fails_later_is_ended_told_once_and_remembered(
        self, bed: StackBed, caplog: pytest.LogCaptureFixture
    ) -> None:
        provider = bed.open(schedule_timeout=0.5)
        bed.world.schedule = 1000.0
        bed.limit(0)
        assert provider.launch(spec_for(bed, provider, 1))
        seen = [m.state for m in list_tidily(provider)]
        with bed.stand_in.lock:
            for server in bed.world.servers.values():
                server["due"] = 0.0
        while InstanceState.TERMINATED not in seen:
            seen += [m.state for m in list_tidily(provider)]
        assert set(seen) <= {InstanceState.PENDING, InstanceState.TERMINATED}
        assert seen.count(InstanceState.TERMINATED) == 1
        assert list_tidily(provider) == ()
        assert "No valid host was found" in caplog.text
        bed.heal()
        with pytest.raises(CapacityError, match="No valid host"):
            provider.launch(spec_for(bed, provider, 1, generation="g2"))
        assert provider.launch(spec_for(bed, provider, 1, generation="g3"))

    def test_a_machine_that_ran_and_broke_is_not_ended_by_itself(self, bed: StackBed) -> None:
        (machine,) = launch(bed)
        bed.world.servers[machine.id]["status"] = "ERROR"
        (found,) = list_tidily(bed.open())
        assert (found.id, found.state) == (machine.id, InstanceState.STOPPING)
        assert bed.alive() == {machine.id}


class TestQuota:
    def test_it_cuts_a_launch(self, bed: StackBed) -> None:
        bed.world.quota = 3
        assert len(launch(bed, 5)) == 3
        assert len(bed.alive()) == 3

    def test_a_single_machine_of_many_knows_its_node(self, bed: StackBed) -> None:
        """nova puts no number behind the name where the quota leaves one."""
        bed.world.quota = 1
        (machine,) = launch(bed, 5)
        assert machine.node == "os1"
        assert [m.node for m in list_tidily(bed.open())] == ["os1"]

    @pytest.mark.parametrize(
        ("limits", "free", "words"),
        [
            ({"maxTotalInstances": 10, "totalInstancesUsed": 4}, 6, "instances is 10 and 4 are"),
            ({"maxTotalCores": 20, "totalCoresUsed": 13}, 3, "quota of cores is 20 and 13 are"),
            ({"maxTotalRAMSize": 10000, "totalRAMUsed": 6000}, 0, "quota of ram is 10000 and 6000"),
            ({"maxTotalInstances": 3, "totalInstancesUsed": 5}, 0, "instances"),
            ({"maxTotalInstances": -1, "maxTotalCores": -1}, None, ""),
            ({}, None, ""),
        ],
    )
    def test_headroom(self, limits: dict[str, int], free: int | None, words: str) -> None:
        found, why = room(limits, 2, 4096)
        assert found == free
        assert words in why

    def test_it_is_told_in_offers(self, bed: StackBed) -> None:
        bed.world.quota = 2
        bed.stand_in.add()
        (offer,) = bed.open().offers(bed.pool)
        assert offer.free == 1
        assert offer.free_reason == "the project's quota of instances is 2 and 1 are used"


class TestNames:
    def test_the_order_of_one_call(self, bed: StackBed, tmp_path: Path) -> None:
        site = tmp_path / "user-data"
        site.write_text("#cloud-config\nruncmd: [site]\n")
        site.chmod(0o644)
        launch(
            bed, 3, networks=("lan",), security_groups=("slurm",), key_name="k", config_drive=True,
            zones=("az1",), user_data=str(site),
        )  # fmt: skip
        (order,) = bed.world.bodies
        document = base64.b64decode(order.pop("user_data")).decode()
        assert order == {
            "name": "os_7d1f0c52_g1_0",
            "flavorRef": "id-small",
            "imageRef": IMAGE,
            "networks": [{"uuid": "net-0"}],
            "min_count": 1,
            "max_count": 3,
            "availability_zone": "az1",
            "security_groups": [{"name": "slurm"}],
            "key_name": "k",
            "config_drive": True,
            "metadata": {
                "slurm-elastic:cluster": UUID,
                "slurm-elastic:cluster-name": "site",
                "slurm-elastic:cloud": NAME,
                "slurm-elastic:pool": "os",
                "slurm-elastic:generation": "g1",
                "slurm-elastic:nodes": "os[1-3]",
                "slurm-elastic:jobs": "7,8",
                "slurm-elastic:account": "physics",
                "slurm-elastic:user": "ann",
                "slurm-elastic:price": "0.02",
                "slurm-elastic:type": "small",
                "slurm-elastic:market": "reserved",
                "slurm-elastic:zone": "az1",
            },
        }
        assert "'nodes': 'os1 os2 os3'" in document
        assert "runcmd: [site]" in document

    def test_the_longest_list_of_nodes_fits_the_metadata_and_the_user_data(self) -> None:
        nodes = tuple(f"{'n' * 56}{n * 37 % 1000:05}x" for n in range(requests.MAX_PER_CALL))
        spec = LaunchSpec(
            generation="g1", pool=replace(StackBed.pool, nodes=nodes), nodes=nodes,
            offer=OFFER, jobs=tuple(range(10**6, 10**6 + 500)),
        )  # fmt: skip
        cluster = Cluster(name="site", uuid=UUID)
        found = requests.metadata(cluster, spec, nodes, NAME)
        assert len(found) < 128
        assert max(map(len, found.values())) <= 255
        record = {
            "metadata": found,
            "id": "i",
            "status": "ACTIVE",
            "created": "2026-11-20T08:00:00Z",
        }
        names = [f"{requests.name(UUID, spec, 0, nodes)}-{n}" for n in (1, 57, 100)]
        read = servers([record | {"name": name} for name in names])
        assert [s.node for s in read] == [nodes[0], nodes[56], nodes[99]]

    @pytest.mark.parametrize("name", ["theirs", "os_7d1f0c52_g1_0-99", "os_7d1f0c52_g2_0-1", "x-1"])
    def test_a_renamed_server_has_no_node_and_is_still_ours(self, bed: StackBed, name: str) -> None:
        machines = launch(bed, 3)
        bed.world.servers[machines[1].id]["name"] = name
        found = {m.id: m.node for m in list_tidily(bed.open())}
        assert found == {m.id: m.node for m in machines} | {machines[1].id: ""}

    def test_what_was_started_twice_after_all_is_ended(self, bed: StackBed) -> None:
        """A call given up by us may be carried out by nova after the look-up."""
        first = launch(bed, 2)
        for one in first:
            known = bed.world.servers[one.id]
            bed.stand_in.add(
                name=known["name"], metadata=known["metadata"], created="2036-01-01T00:00:00Z"
            )
        assert len(bed.alive()) == 4
        assert {m.id for m in launch(bed, 2)} == {m.id for m in first} == bed.alive()

    def test_a_repeated_launch_of_many_orders_only_the_calls_that_are_missing(
        self, bed: StackBed
    ) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 250)
        bed.stand_in.fail(Kind.RESET_BEFORE, CREATE, 0)
        (fault,) = bed.world.faults
        original = bed.stand_in.struck

        def third_is_lost(request: str):
            if request == CREATE and bed.stand_in.calls(CREATE) == 3:
                fault.count = 1
            return original(request)

        bed.stand_in.struck = third_is_lost  # type: ignore[method-assign]
        try:
            with pytest.raises(TransientError):
                provider.launch(spec)
        finally:
            bed.stand_in.struck = original  # type: ignore[method-assign]
        assert len(bed.alive()) == 200
        assert tuple(m.node for m in bed.open().launch(spec)) == spec.nodes
        assert len(bed.alive()) == 250
        assert bed.stand_in.calls(CREATE) == 4

    def test_lists_are_read_page_by_page_also_where_pages_are_smaller(self, bed: StackBed) -> None:
        bed.world.page = 7
        machines = launch(bed, 45)
        assert {m.id for m in list_tidily(bed.open())} == {m.id for m in machines}
        assert bed.stand_in.calls(LIST) > 7

    def test_so_are_flavors(self, bed: StackBed) -> None:
        bed.world.page = 1
        kinds = {name: Flavor(cpus=2, memory=4096, flavor=name) for name in ("small", "big")}
        pool = replace(bed.pool, instance_types=("small", "big"))
        offers = bed.open(types=kinds).offers(pool)
        assert [o.instance_type for o in offers] == ["small", "big"]


class TestClouds:
    def test_clouds_of_one_project_leave_each_others_machines_alone(self, bed: StackBed) -> None:
        clouds = (bed.settings(), replace(bed.settings(), name="second"))
        pools = (
            PoolSettings(name="os", cloud=NAME, nodes="os[1-9]", cpus=2, memory=4096),
            PoolSettings(name="two", cloud="second", nodes="two[1-9]", cpus=2, memory=4096),
        )
        cluster = Cluster(name="site", uuid=UUID)
        config = Config(cluster=cluster, clouds=clouds, pools=pools)
        first, second = (open_provider(c, cluster, config) for c in clouds)
        mine = first.launch(spec_for(bed, first, 2))
        assert list_tidily(second) == ()
        second.terminate([m.id for m in mine])
        assert bed.alive() == {m.id for m in mine}
        # Of a cloud that was renamed since, its pool tells.
        for one in bed.world.servers.values():
            one["metadata"]["slurm-elastic:cloud"] = "gone"
        assert {m.id for m in list_tidily(first)} == {m.id for m in mine}
        assert list_tidily(second) == ()

    def test_zones_are_offers_of_their_own(self, bed: StackBed) -> None:
        offers = bed.open(zones=("az1", "az2")).offers(bed.pool)
        assert [o.zone for o in offers] == ["az1", "az2"]
        assert [o.zone for o in bed.open().offers(bed.pool)] == ["default"]
        only = replace(bed.pool, zones=("az2",))
        assert [o.zone for o in bed.open(zones=("az1", "az2")).offers(only)] == ["az2"]

    @pytest.mark.parametrize(
        ("kind", "why"),
        [
            (Flavor(cpus=2, memory=4096, flavor="no-such"), "no such flavor"),
            (Flavor(cpus=3, memory=4096), "has 2 cpus and 4096 MiB"),
            (Flavor(cpus=2, memory=5000), "has 2 cpus and 4096 MiB"),
        ],
    )
    def test_a_flavor_that_is_not_as_said_is_not_offered(
        self, bed: StackBed, kind: Flavor, why: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert bed.open(types={"small": kind}).offers(bed.pool) == ()
        assert why in caplog.text

    @pytest.mark.parametrize(
        ("more", "code"),
        [
            ({"image": "no-such"}, "NoImage"),
            ({"networks": ("no-such",)}, "NoNetwork"),
            ({"networks": ("twice",)}, "NoNetwork"),
        ],
    )
    def test_names_that_lead_nowhere_start_nothing(
        self, bed: StackBed, more: dict[str, object], code: str
    ) -> None:
        with pytest.raises(ProviderError) as caught:
            launch(bed, **more)
        assert caught.value.code == code
        assert bed.alive() == set()

    @pytest.mark.parametrize("status", ["SUSPENDED", "PAUSED", "ERROR", "NEW_WORD"])
    def test_what_slurm_has_lost_is_on_its_way_out(self, bed: StackBed, status: str) -> None:
        (machine,) = launch(bed)
        bed.world.servers[machine.id]["status"] = status
        assert [m.state for m in list_tidily(bed.open())] == [InstanceState.STOPPING]

    def test_one_that_is_shut_off_is_stopped(self, bed: StackBed) -> None:
        (machine,) = launch(bed)
        bed.world.servers[machine.id]["status"] = "SHUTOFF"
        assert [m.state for m in list_tidily(bed.open())] == [InstanceState.STOPPED]

    @pytest.mark.parametrize(
        ("changes", "state"),
        [
            ({"power": 1}, InstanceState.RUNNING),
            ({"power": 1, "status": "UNKNOWN"}, InstanceState.RUNNING),
            ({"power": 4}, InstanceState.STOPPING),
            ({"power": None}, InstanceState.STOPPING),
            ({"power": 1, "task": "deleting"}, InstanceState.STOPPING),
            ({"power": 1, "status": "SHUTOFF"}, InstanceState.STOPPED),
        ],
    )
    def test_a_guest_that_runs_is_not_lost_because_something_failed_for_it(
        self, bed: StackBed, changes: dict[str, object], state: InstanceState
    ) -> None:
        """nova-compute sets it to ERROR where it cannot look after it when it comes up again."""
        (machine,) = launch(bed)
        keys = {
            "status": "status",
            "power": "OS-EXT-STS:power_state",
            "task": "OS-EXT-STS:task_state",
        }
        record = {keys[name]: value for name, value in ({"status": "ERROR"} | changes).items()}
        bed.world.servers[machine.id] |= record
        assert [m.state for m in list_tidily(bed.open())] == [state]

    def test_a_deletion_under_way_shows(self) -> None:
        record = {
            "id": "i", "name": "n", "status": "ACTIVE", "metadata": {}, "created": "2026-11-20T08:00:00Z",
            "OS-EXT-STS:task_state": "deleting",
        }  # fmt: skip
        assert state_of(servers([record])[0]) is InstanceState.STOPPING
        assert STATES["ACTIVE"] is InstanceState.RUNNING

    def test_addresses(self) -> None:
        cards = {
            "a": [
                {"addr": "203.0.113.9", "version": 4, "OS-EXT-IPS:type": "floating"},
                {"addr": "fd00::1", "version": 6, "OS-EXT-IPS:type": "fixed"},
            ],
            "b": [{"addr": "10.0.0.7", "version": 4, "OS-EXT-IPS:type": "fixed"}],
        }
        record = {
            "id": "i",
            "name": "n",
            "status": "ACTIVE",
            "metadata": {},
            "created": "2026-11-20T08:00:00Z",
        }
        (server,) = servers([record | {"addresses": cards}])
        assert (server.address, server.public_address) == ("10.0.0.7", "203.0.113.9")
        (server,) = servers([record])
        assert (server.address, server.public_address) == (None, None)


class TestCredentials:
    def test_a_file_with_a_password_that_others_may_read_is_refused(self, bed: StackBed) -> None:
        bed.file.chmod(0o640)
        with pytest.raises(AuthError, match=r"may be read by others \(mode 0640\); chmod 600"):
            bed.open().check()
        bed.file.chmod(0o600)
        bed.open().check()

    def test_the_secret_may_be_in_a_file_of_its_own(self, bed: StackBed) -> None:
        words = bed.file.read_text()
        secret = "clouds: {hpc: {auth: {password: stand-in-password}}}\n"
        bed.file.write_text(words.replace("      password: stand-in-password\n", ""))
        bed.file.chmod(0o644)
        beside = bed.file.with_name("secure.yaml")
        beside.touch(mode=0o600)
        beside.write_text(secret)
        bed.open().check()
        beside.chmod(0o604)
        with pytest.raises(AuthError, match=r"secure\.yaml may be read by others"):
            bed.open().check()

    def test_a_renewed_password_is_picked_up(self, bed: StackBed) -> None:
        provider = bed.open()
        provider.check()
        bed.world.password = "renewed-stand-in-password"
        bed.stand_in.refuse(401, "expired", LIST, 2)
        with pytest.raises(AuthError):
            provider.check()
        bed.login("renewed-stand-in-password")
        provider.check()

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("clouds: {}\n", "hpc"),
            ("{", "is not YAML"),
            ("clouds: {hpc: {auth: {auth_url: http://127.0.0.1:9/v3}}}\n", "required"),
        ],
    )
    def test_entries_that_cannot_be_used(self, bed: StackBed, text: str, why: str) -> None:
        bed.file.write_text(text)
        with pytest.raises(AuthError, match=why):
            bed.open().check()

    def test_no_file_at_all(self, bed: StackBed) -> None:
        bed.file.unlink()
        with pytest.raises(AuthError, match="cannot be read: No such file"):
            bed.open().check()

    def test_a_wrong_password_is_in_no_message(self, bed: StackBed) -> None:
        bed.login("wrong-stand-in-password")
        with pytest.raises(AuthError) as caught:
            bed.open().check()
        assert caught.value.code == "Unauthorized"
        assert "wrong-stand-in" not in str(caught.value)

    def test_a_region_that_is_not_there(self, bed: StackBed) -> None:
        with pytest.raises(AuthError, match="elsewhere"):
            bed.open(region="elsewhere").check()

    def test_nothing_secret_is_logged(
        self, bed: StackBed, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        site = tmp_path / "user-data"
        site.write_text("#!/bin/sh\necho a-secret-of-the-site\n")
        site.chmod(0o600)
        with caplog.at_level(logging.DEBUG):
            launch(bed, user_data=str(site))
        packed = bed.world.bodies[0]["user_data"]
        for secret in (
            "stand-in-password",
            "not-for-logs",
            "a-secret-of-the-site",
            packed[200:260],
        ):
            assert secret not in caplog.text

    def test_user_data_that_nova_quotes_is_left_out_of_the_message(self, bed: StackBed) -> None:
        packed = base64.b64encode(b"the site's secret " * 4000).decode()
        words = (
            f"Invalid input for field/attribute user_data. Value: {packed}. '{packed}' is too long"
        )
        bed.stand_in.refuse(400, words, CREATE)
        with pytest.raises(ProviderError) as caught:
            launch(bed)
        assert packed[100:160] not in str(caught.value)
        assert "is too long" in str(caught.value)
        assert len(str(caught.value)) < 400
        assert caught.value.__cause__ is None


class TestUserData:
    def run(self, facts: dict[str, str], tmp_path: Path, metadata: object) -> dict[str, str]:
        known = tmp_path / "instance-data.json"
        known.write_text(json.dumps({"ds": {"meta_data": metadata}}))
        script = tmp_path / "hook.py"
        text = program(facts, requests.USER_DATA)
        text = text.replace("/run/slurm-elastic", str(tmp_path / "out"))
        text = text.replace("/run/cloud-init/instance-data-sensitive.json", str(known))
        script.write_text(text.replace("http://169.254.169.254", "http://127.0.0.1:9"))
        runpy.run_path(str(script), run_name="__main__")
        return {p.name: p.read_text() for p in (tmp_path / "out").iterdir()}

    def test_a_machine_of_many_finds_its_node(self, tmp_path: Path) -> None:
        facts = {"cluster": "site", "generation": "g1", "nodes": "a1 a2 b7"}
        found = self.run(facts, tmp_path, {"launch_index": 2})
        assert found == {"node": "b7\n", "launch": "cluster=site\ngeneration=g1\nnode=b7\n"}

    def test_a_single_one_asks_nobody(self, tmp_path: Path) -> None:
        assert self.run({"nodes": "a1"}, tmp_path, {})["node"] == "a1\n"

    def test_without_metadata_it_writes_nothing_wrong(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match="no metadata tells"):
            self.run({"nodes": "a1 a2"}, tmp_path, {})
        assert not (tmp_path / "out").exists()

    def test_what_its_readers_need_is_not_sent(self) -> None:
        assert boothook.__doc__ is not None
        assert boothook.__doc__[:30] not in program({"nodes": "a1"}, requests.USER_DATA)

    def test_too_much_is_refused_at_once(self, bed: StackBed, tmp_path: Path) -> None:
        site = tmp_path / "user-data"
        site.write_text("#!/bin/sh\n" + random.Random(1).randbytes(60_000).hex())
        site.chmod(0o600)
        with pytest.raises(ConfigError, match="nova leaves room for 38909"):
            bed.open(user_data=str(site))


@pytest.mark.parametrize(
    ("status", "message", "method", "path", "kind", "code"),
    [
        (403, "Quota exceeded for ram: Requested 1", "POST", "/servers", QuotaError, "ram-quota"),
        (403, "Quota exceeded for cores, ram: x", "POST", "/servers", QuotaError, "cores-quota"),
        (
            403,
            "Project 1 is over a limit for [servers]",
            "POST",
            "/servers",
            QuotaError,
            "project-quota",
        ),
        (403, "Maximum number of ports exceeded", "POST", "/servers", QuotaError, "project-quota"),
        (403, "Policy doesn't allow it", "GET", "/servers", AuthError, "Forbidden"),
        (403, "Policy doesn't allow it", "POST", "/servers", DeniedError, "Forbidden"),
        (
            400,
            "No more IP addresses available on network",
            "POST",
            "/servers",
            CapacityError,
            "NoRoom",
        ),
        (400, "Flavor x could not be found.", "POST", "/servers", ProviderError, "HTTP400"),
        (
            404,
            "Instance x could not be found.",
            "DELETE",
            "/servers/x",
            InstanceNotFound,
            "NotFound",
        ),
        (404, "default backend - 404", "DELETE", "/servers/x1", ProviderError, "HTTP404"),
        (404, "<p>/servers/x1 was not found", "DELETE", "/servers/x1", ProviderError, "HTTP404"),
        (404, "404 page not found", "GET", "/servers/detail", ProviderError, "HTTP404"),
        (400, "marker [x] not found", "GET", "/servers/detail", TransientError, "Marker"),
        (409, "Multiple possible networks found", "POST", "/servers", ProviderError, "HTTP409"),
        (409, "Instance x is locked", "DELETE", "/servers/x", ProviderError, "Locked"),
        (
            409,
            "while it is in vm_state building",
            "DELETE",
            "/servers/x",
            TransientError,
            "Conflict",
        ),
        (503, "", "GET", "/servers", TransientError, "HTTP503"),
    ],
)
def test_refusals(
    status: int, message: str, method: str, path: str, kind: type[ProviderError], code: str
) -> None:
    found, word = classify(status, message, method, path)
    assert issubclass(found, kind)
    assert word == code
    if kind is ProviderError and code != "NotFound":
        assert found is ProviderError


def test_faults() -> None:
    assert isinstance(from_fault("c", "Quota exceeded for ports"), QuotaError)
    assert from_fault("c", "Exhausted all hosts available").code == "NoValidHost"
    assert from_fault("c", "").code == "BuildFailed"


def test_sentences() -> None:
    assert sentence("two\n lines") == "two lines"
    assert sentence("") == "no message"
    assert "hunter2" not in sentence("auth failed: password=hunter2 for elastic")


def test_a_snapshot_of_a_machine_is_no_pools_image_unless_it_was_built_or_named(
    bed: StackBed,
) -> None:
    """Nova's snapshots inherit all properties."""
    base, copy, built = (f"00000000-0000-0000-0000-00000000000{n}" for n in "abc")
    node = {"os_distro": "debian", "os_version": "12", "slurm_elastic_software": "slurm-24.11.5"}
    of_machine = {"image_type": "snapshot", "base_image_ref": base, "instance_uuid": "m"}
    images = [
        {"id": copy, "name": "backup", "created_at": "2026-02-01T00:00:00Z", **node, **of_machine},
        {"id": base, "name": "node-1", "created_at": "2026-01-01T00:00:00Z", **node},
    ]
    bed.world.images = images
    catalog = Catalog(bed.settings(), lambda *_, **__: {"images": bed.world.images})
    choice = ImageChoice(os="debian", software=("slurm-24.11",))
    assert catalog.image(choice) == base
    assert catalog.image(ImageChoice(name="backup")) == copy
    newer = {**node, **of_machine, "slurm_elastic_software": "slurm-24.11.6"}
    images[:0] = [{"id": built, "name": "x", "created_at": "2026-03-01T00:00:00Z", **newer}]
    assert Catalog(bed.settings(), lambda *_, **__: {"images": images}).image(choice) == built


def test_clusters_are_told_apart_in_names() -> None:
    name = f"os_{OTHER_UUID[:8]}_g1_0-1"
    assert requests.place(name, OTHER_UUID, "g1") == (0, 0)
    assert requests.place(name, UUID, "g1") is None


def test_a_machines_console_is_shown(bed: StackBed) -> None:
    (machine,) = launch(bed)
    provider = bed.open()
    assert isinstance(provider, OpenStackProvider)
    assert provider.console(machine.id) == f"printed by {machine.id}"
    with pytest.raises(ProviderError):
        provider.console("00000000-0000-0000-0000-000000000000")


def test_a_pools_image_is_the_newest_that_fits(bed: StackBed) -> None:
    old, new = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"
    common = {"os_distro": "debian", "os_version": "12.5", "tags": ["munge"]}
    bed.world.images = [
        {"id": new, "name": "node-2", "created_at": "2026-02-01T00:00:00Z", **common},
        {"id": old, "name": "node-1", "created_at": "2026-01-01T00:00:00Z", **common,
         "slurm_elastic_software": "slurm-22.05.8, cuda-12"},
    ]  # fmt: skip
    provider = bed.open()

    def image_for(number: int, choice: ImageChoice) -> str:
        spec = spec_for(bed, provider, 1, generation=f"g-image-{number}")
        provider.launch(replace(spec, pool=replace(spec.pool, image=choice)))
        return bed.world.bodies[-1]["imageRef"]

    assert image_for(1, ImageChoice(name="node-*")) == new
    assert image_for(2, ImageChoice(os="debian", version="12", software=("munge",))) == new
    assert image_for(3, ImageChoice(software=("slurm-22.05", "cuda-12"))) == old
    assert image_for(4, ImageChoice(id=old)) == old
    with pytest.raises(ProviderError, match="no image has the name none; looked at 2, the nearest"):
        image_for(5, ImageChoice(name="none"))
