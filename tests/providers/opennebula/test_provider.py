"""OpenNebula's behaviour: capacity, quotas, states, credentials, context, time-outs."""

from __future__ import annotations

import base64
import logging
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace
from patience import awake, eventually, patience, stretched
from providers.opennebula.bed import FAST, INSTANTIATE, NAME, OneBed, world

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.model.cluster import EndAnswer, InstanceState, LaunchSpec
from slurm_elastic.model.protocols import list_tidily
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.opennebula import instances
from slurm_elastic.providers.opennebula.errors import is_refusal
from slurm_elastic.providers.opennebula.front_end import FrontEnd
from slurm_elastic.providers.opennebula.instances import PAGE
from slurm_elastic.providers.opennebula.provider import OpenNebulaProvider
from slurm_elastic.providers.opennebula.settings import OneTemplate
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.control import OneControl, OneQuota, Place
from slurm_elastic.sandbox.nebula.world import Net, OneHost, OnePace
from slurm_elastic.testing.contract import UUID, spec_for

pytestmark = pytest.mark.usefixtures("guarded")

ELASTIC, USERS = 2, 1
NO_HOST = "Cannot dispatch VM: No host with enough capacity to deploy the VM"
FULL = [OneHost(id=0, name="tiny", cpu=0, memory=0)]


@pytest.fixture
def bed(control: OneControl, tmp_path: Path) -> OneBed:
    """By an account that sees no hosts, as most do."""
    return OneBed(control, tmp_path, user="elastic")


def launch(bed: OneBed, count: int = 1, generation: str = "g1", **more: object) -> None:
    provider = bed.open(**more)
    provider.launch(spec_for(bed, provider, count, generation=generation))


def machines(bed: OneBed) -> list:
    return [m for m in bed.control.state().machines if m.state != 6]


def test_a_launch_whose_machine_still_shuts_down_is_not_answered_with_it(bed: OneBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    machine = provider.launch(spec)[0]
    eventually(lambda: list_tidily(provider)[0].state is InstanceState.RUNNING)
    bed.control.pace(OnePace(schedule=0.1, boot=0.1, shutdown=1e6))
    provider.terminate([machine.id])
    with pytest.raises(CapacityError):
        provider.launch(spec)
    assert len(machines(bed)) == 1
    eventually(lambda: list_tidily(provider)[0].state is InstanceState.STOPPING)
    with pytest.raises(CapacityError):
        bed.open().launch(spec)
    assert len(machines(bed)) == 1


class TestQuota:
    def test_the_groups_is_a_quota_error_when_it_is_met(self, bed: OneBed) -> None:
        bed.control.quota(OneQuota(group=USERS, vm={"VMS": 0}, hidden=True))
        with pytest.raises(QuotaError) as caught:
            launch(bed)
        assert caught.value.code == "VMS-quota"
        assert (
            caught.value.message == "User [2] : group [1] limit of 0 reached for VMS quota in VM."
        )

    def test_the_groups_met_on_the_way_is_a_partial_launch(self, bed: OneBed) -> None:
        bed.control.quota(OneQuota(group=USERS, vm={"VMS": 2}, hidden=True))
        provider = bed.open()
        assert len(provider.launch(spec_for(bed, provider, 4))) == 2
        assert len(bed.alive()) == 2

    def test_leases_are_a_quota_too(self, bed: OneBed) -> None:
        bed.control.quota(OneQuota(user=ELASTIC, leases={0: 0}))
        with pytest.raises(QuotaError, match="LEASES"):
            launch(bed)

    @pytest.mark.parametrize(
        ("quota", "free", "words"),
        [
            ({"VMS": 3}, 3, "the account's VMS quota is 3 and 0 are used"),
            ({"CPU": 5}, 2, "the account's CPU quota is 5 and 0 are used"),
            ({"MEMORY": 4096, "VMS": 9}, 1, "the account's MEMORY quota is 4096 and 0 are used"),
            ({"RUNNING_VMS": 3}, 3, "the account's RUNNING_VMS quota is 3 and 0 are used"),
            ({"RUNNING_CPU": 5}, 2, "the account's RUNNING_CPU quota is 5 and 0 are used"),
            (
                {"RUNNING_MEMORY": 8192},
                2,
                "the account's RUNNING_MEMORY quota is 8192 and 0 are used",
            ),
            (
                {"SYSTEM_DISK_SIZE": 5000},
                4,
                "the account's SYSTEM_DISK_SIZE quota is 5000 and 0 are used",
            ),
            ({"VMS": -2, "CPU": -1}, None, ""),
            ({}, None, ""),
        ],
    )
    def test_the_accounts_own_is_read_beforehand(
        self, bed: OneBed, quota: dict[str, float], free: int | None, words: str
    ) -> None:
        bed.control.quota(OneQuota(user=ELASTIC, vm=quota))
        (offer,) = bed.open().offers(bed.pool)
        assert (offer.free, offer.free_reason) == (free, words)

    @pytest.mark.parametrize(
        ("quota", "free", "words"),
        [
            (OneQuota(user=ELASTIC, leases={0: 3}), 3, "LEASES in network 0 quota is 3 and 0 are"),
            (OneQuota(user=ELASTIC, runs={0: 2}), 2, "RVMS of image 0 quota is 2 and 0 are used"),
            (OneQuota(user=ELASTIC, leases={7: 0}, runs={9: 0}), None, ""),
            (OneQuota(group=USERS, vm={"VMS": 4}), 4, "the group's VMS quota is 4 and 0 are used"),
            (OneQuota(group=USERS, vm={"RUNNING_CPU": 4}), 2, "the group's RUNNING_CPU quota is 4"),
            (OneQuota(group=USERS, vm={"VMS": 4}, hidden=True), None, ""),
        ],
    )
    def test_networks_images_and_the_group_bound_the_offer(
        self, bed: OneBed, quota: OneQuota, free: int | None, words: str
    ) -> None:
        bed.control.quota(quota)
        (offer,) = bed.open().offers(bed.pool)
        assert offer.free == free
        assert words in offer.free_reason

    @pytest.mark.parametrize(
        "quota",
        [
            OneQuota(user=ELASTIC, vm={"RUNNING_VMS": 2}),
            OneQuota(user=ELASTIC, vm={"SYSTEM_DISK_SIZE": 2048}),
            OneQuota(user=ELASTIC, leases={0: 2}),
            OneQuota(user=ELASTIC, runs={0: 2}),
            OneQuota(group=USERS, vm={"VMS": 2}),
        ],
    )
    def test_what_a_quota_leaves_is_asked_for_and_no_more(
        self, bed: OneBed, quota: OneQuota
    ) -> None:
        bed.control.quota(quota)
        provider = bed.open()
        assert len(provider.launch(spec_for(bed, provider, 4))) == 2
        assert bed.calls(INSTANTIATE) == 2
        assert provider.offers(bed.pool)[0].free == 0

    def test_with_the_accounts_own_used_up_nothing_is_started(self, bed: OneBed) -> None:
        bed.control.quota(OneQuota(user=ELASTIC, vm={"VMS": 1}))
        launch(bed)
        with pytest.raises(QuotaError, match="VMS quota is 1 and 1 are used"):
            launch(bed, generation="g2")
        assert bed.calls(INSTANTIATE) == 1


class TestCapacity:
    def test_a_network_without_addresses_is_a_capacity_error(self, bed: OneBed) -> None:
        bed.control.nets([Net(id=0, name="lan", size=1)])
        launch(bed)
        with pytest.raises(CapacityError) as caught:
            launch(bed, generation="g2")
        assert caught.value.code == "NoLease"

    def test_the_administrator_sees_how_much_the_hosts_have(
        self, control: OneControl, tmp_path: Path
    ) -> None:
        bed = OneBed(control, tmp_path)
        control.hosts([OneHost(id=0, name="a", cpu=500), OneHost(id=1, name="b", cpu=300)])
        (offer,) = bed.open().offers(bed.pool)
        assert offer.free == 3
        launch(bed, 3)
        (offer,) = bed.open().offers(bed.pool)
        assert offer.free == 0
        bed.running(3)
        (offer,) = bed.open().offers(bed.pool)
        assert offer.free == 0
        assert offer.free_reason == "the hosts have room for 0 and 0 machines wait for a place"

    def test_others_that_wait_in_vain_take_no_room(
        self, control: OneControl, tmp_path: Path
    ) -> None:
        bed = OneBed(control, tmp_path)
        control.hosts([OneHost(id=0, name="a", cpu=400)])
        message = {"SCHED_MESSAGE": f"Fri Nov 20 03:35:07 2026: {NO_HOST}"}
        for number, tags in ((50, message), (51, {})):
            control.place(Place(id=number, uid=2, state=1, lcm=0, template=1, user_template=tags))
        (offer,) = bed.open().offers(bed.pool)
        assert offer.free == 1

    def test_a_machine_that_finds_no_place_is_given_up_after_the_limit(self, bed: OneBed) -> None:
        bed.control.hosts(FULL)
        patient = bed.open(pending_timeout=1000.0)
        patient.launch(spec_for(bed, patient, 2))
        assert {m.state for m in list_tidily(patient)} == {InstanceState.PENDING}
        provider = bed.open(pending_timeout=1.0)
        eventually(lambda: {m.state for m in list_tidily(provider)} == {InstanceState.TERMINATED})
        assert bed.alive() == set()
        assert list_tidily(provider) == ()
        bed.control.hosts([OneHost(id=0, name="big", cpu=10**6, memory=10**9)])
        with pytest.raises(CapacityError, match="No host with enough capacity"):
            provider.launch(spec_for(bed, provider, 1, generation="g2"))
        assert bed.calls(INSTANTIATE) == 2
        assert provider.launch(spec_for(bed, provider, 1, generation="g3"))

    def test_a_launch_that_the_scheduler_places_in_parts_is_placed_whole(self, bed: OneBed) -> None:
        """It takes several times the limit; each machine but the first ones has a message."""
        bed.control.pace(OnePace(schedule=0.5, boot=0.1, dispatch=2))
        provider = bed.open(pending_timeout=2.0)
        provider.launch(spec_for(bed, provider, 16))
        eventually(lambda: {m.state for m in list_tidily(provider)} == {InstanceState.RUNNING})
        assert len(bed.alive()) == 16

    def test_machines_that_the_scheduler_comes_to_do_not_look_like_a_full_cloud(
        self, bed: OneBed
    ) -> None:
        bed.control.pace(OnePace(schedule=0.5, boot=0.1, dispatch=2))
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 40))
        eventually(lambda: any(m.state is InstanceState.RUNNING for m in list_tidily(provider)))
        assert any("dispatch limit" in m.tags.get("SCHED_MESSAGE", "") for m in machines(bed))
        assert provider.offers(bed.pool)[0].free is None
        assert provider.launch(spec_for(bed, provider, 1, generation="g2"))

    def test_waiting_without_a_message_is_only_waiting(self, bed: OneBed) -> None:
        bed.control.pace(OnePace(schedule=1000.0))
        provider = bed.open(pending_timeout=0.2)
        provider.launch(spec_for(bed, provider, 1))
        time.sleep(0.3)
        assert [m.state for m in list_tidily(provider)] == [InstanceState.PENDING]

    def test_no_more_are_queued_behind_one_that_finds_no_place(self, bed: OneBed) -> None:
        bed.control.hosts(FULL)
        launch(bed)
        provider = bed.open()
        eventually(lambda: provider.offers(bed.pool)[0].free == 0)
        with pytest.raises(CapacityError, match="waits for a place: Cannot dispatch VM"):
            provider.launch(spec_for(bed, provider, 1, generation="g2"))
        assert bed.calls(INSTANTIATE) == 1

    def test_anothers_stuck_machine_or_a_greater_one_of_ours_says_nothing(
        self, bed: OneBed
    ) -> None:
        message = {"SCHED_MESSAGE": f"Fri Nov 20 03:35:07 2026: {NO_HOST}"}
        for number, uid, template in ((50, 0, 0), (51, ELASTIC, 1)):
            bed.control.place(
                Place(id=number, uid=uid, state=1, lcm=0, template=template, user_template=message)
            )
        assert bed.open().offers(bed.pool)[0].free is None
        launch(bed)

    def test_a_failed_boot_is_ended_and_remembered(self, bed: OneBed) -> None:
        bed.control.pace(OnePace(schedule=0.1, boot=0.1, broken="op1-*"))
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 2))
        seen: set[tuple[str, InstanceState]] = set()

        def both_seen() -> bool:
            # The failed one may be gone from the list before the other one runs.
            seen.update((m.node, m.state) for m in list_tidily(provider))
            return {("op1", InstanceState.TERMINATED), ("op2", InstanceState.RUNNING)} <= seen

        eventually(both_seen)
        assert ("op1", InstanceState.RUNNING) not in seen
        with pytest.raises(CapacityError, match="DEPLOY"):
            provider.launch(spec_for(bed, provider, 1, generation="g2"))


class TestRestartOfOned:
    """It is killed and started anew while machines are between two states."""

    def test_a_machine_that_was_ending_is_asked_to_end_again(
        self, bed: OneBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(instances, "ASK_AGAIN_AFTER_S", 0.2)
        bed.control.pace(OnePace(schedule=0.1, boot=0.1, shutdown=1000.0))
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        bed.running(1)
        provider.terminate([machine.id])
        bed.control.restart(answer=0.0)
        bed.control.pace(FAST)
        eventually(lambda: not list_tidily(provider))

    def test_by_a_daemon_that_never_asked_for_it_too(
        self, bed: OneBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(instances, "ASK_AGAIN_AFTER_S", 0.2)
        bed.control.pace(OnePace(schedule=0.1, boot=0.1, shutdown=1000.0))
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        bed.running(1)
        provider.terminate([machine.id])
        bed.control.restart(answer=0.0)
        bed.control.pace(FAST)
        successor = bed.open()
        eventually(lambda: not list_tidily(successor))

    def test_a_machine_that_boots_is_asked_until_the_driver_answers(self, bed: OneBed) -> None:
        bed.control.pace(OnePace(schedule=0.1, boot=1000.0))
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        eventually(lambda: any(m.lcm for m in machines(bed)))
        bed.control.restart(answer=1.0)
        bed.control.pace(FAST)
        provider.terminate([machine.id])
        assert bed.alive() == set()

    def test_one_that_runs_again_after_its_end_was_asked_for_is_asked_again(
        self, bed: OneBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A hypervisor that fails brings it back to RUNNING without any error."""
        monkeypatch.setattr(instances, "ASK_AGAIN_AFTER_S", 0.2)
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        bed.running(1)
        provider.terminate([machine.id])
        number = int(machine.id.rpartition("-")[2])
        tags = next(m.tags for m in bed.control.state().machines if m.id == number)
        back = Place(id=number, uid=ELASTIC, state=3, lcm=3, template=0, user_template=tags, host=0)
        bed.control.place(back)
        eventually(lambda: not list_tidily(provider))

    def test_what_nobody_asked_to_end_is_left_alone(
        self, bed: OneBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(instances, "ASK_AGAIN_AFTER_S", 0.0)
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 2))
        bed.running(2)
        bed.control.restart(answer=0.0)
        for _ in range(3):
            assert len(list_tidily(provider)) == 2


class TestRetries:
    def test_a_repeated_launch_starts_only_what_is_missing(self, bed: OneBed) -> None:
        bed.control.fail(Fault(kind=FaultKind.INTERNAL, action=INSTANTIATE, count=1))
        provider = bed.open()
        spec = spec_for(bed, provider, 4)
        with pytest.raises(TransientError):
            provider.launch(spec)
        before = bed.alive()
        assert 0 < len(before) < 4
        assert tuple(m.node for m in bed.open().launch(spec)) == spec.nodes
        assert len(bed.alive()) == 4
        assert before < bed.alive()

    def test_what_was_started_twice_after_all_is_ended(self, bed: OneBed) -> None:
        """A call given up by us may be carried out by oned after the look-up."""
        launch(bed)
        (first,) = machines(bed)
        bed.control.place(
            Place(id=900, uid=ELASTIC, template=0, host=0, user_template=dict(first.tags))
        )
        bed.running(2)
        provider = bed.open()
        (kept,) = provider.launch(spec_for(bed, provider, 1))
        assert bed.alive() == {kept.id}

    def test_an_ended_machine_is_found_behind_pages_of_others(self, bed: OneBed) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 1)
        (machine,) = provider.launch(spec)
        provider.terminate([machine.id])
        for number in range(100, 100 + PAGE + 3):
            bed.control.place(Place(id=number, uid=ELASTIC, state=6, lcm=0, template=0))
        with pytest.raises(CapacityError, match="1 machines of this launch have ended"):
            bed.open().launch(spec)

    def test_old_ended_machines_are_not_gone_through(self, bed: OneBed) -> None:
        long_ago = time.time() - 10 * 86400
        for number in range(100, 100 + 3 * PAGE):
            bed.control.place(
                Place(id=number, uid=ELASTIC, state=6, lcm=0, template=0, began=long_ago)
            )
        bed.control.count_from(1000)
        provider = bed.open()
        generation = f"g{int(time.time() * 1000):013d}-00000000"
        provider.launch(spec_for(bed, provider, 1, generation=generation))
        assert bed.calls("one.vmpool.infoextended") == 2


class TestTerminate:
    def test_a_booting_machine_is_asked_again_until_it_may_end(self, bed: OneBed) -> None:
        bed.control.pace(OnePace(schedule=0.0, boot=1000.0, shutdown=0.1))
        launch(bed)
        eventually(lambda: any(m.state == 3 for m in machines(bed)))
        provider = bed.open()
        (one,) = machines(bed)
        with ThreadPoolExecutor(1) as threads:
            ending = threads.submit(provider.terminate, [f"{NAME}-{one.id}"])
            eventually(lambda: bed.calls("one.vm.action") > 1)
            up = Place(
                id=one.id, uid=ELASTIC, state=3, lcm=3, template=0, user_template=one.tags, host=0
            )
            bed.control.place(up)
            ending.result()
        assert bed.alive() == set()

    def test_one_that_boots_for_ever_is_a_transient_error(self, bed: OneBed) -> None:
        bed.control.pace(OnePace(schedule=0.0, boot=1000.0))
        launch(bed, 2)
        eventually(lambda: all(m.state == 3 for m in machines(bed)))
        provider, ids = bed.open(timeout=1.5), [m.id for m in list_tidily(bed.open())]
        with awake() as took:
            with pytest.raises(TransientError, match="wrong state"):
                provider.terminate(ids)
            assert took() < stretched(1.5)

    def test_one_that_is_locked_does_not_stand_in_the_way_of_others(self, bed: OneBed) -> None:
        launch(bed, 2)
        bed.running(2)
        first, second = machines(bed)
        bed.control.place(
            Place(id=first.id, uid=ELASTIC, template=0, locked=True, user_template=first.tags)
        )
        provider = bed.open()
        with pytest.raises(ProviderError, match="MANAGE VM") as caught:
            provider.terminate([f"{NAME}-{first.id}", f"{NAME}-{second.id}"])
        assert not isinstance(caught.value, AuthError)
        assert bed.alive() == {f"{NAME}-{first.id}"}


@pytest.mark.parametrize(
    ("state", "lcm", "wanted"),
    [
        (1, 0, InstanceState.PENDING),
        (2, 0, InstanceState.PENDING),
        (3, 1, InstanceState.PENDING),
        (3, 2, InstanceState.PENDING),
        (3, 3, InstanceState.RUNNING),
        (3, 16, InstanceState.RUNNING),  # UNKNOWN: whether it answers is seen by Slurm
        (3, 69, InstanceState.RUNNING),  # BACKUP, which pyone's own list lacks
        (3, 12, InstanceState.STOPPING),
        (3, 11, InstanceState.STOPPING),
        (3, 44, InstanceState.STOPPING),
        (4, 0, InstanceState.STOPPING),
        (5, 0, InstanceState.STOPPING),
        (8, 0, InstanceState.STOPPED),
    ],
)
def test_states(bed: OneBed, state: int, lcm: int, wanted: InstanceState) -> None:
    tags = {"SLURM_ELASTIC_CLUSTER": UUID, "SLURM_ELASTIC_NODE": "op7"}
    bed.control.place(
        Place(id=7, uid=ELASTIC, state=state, lcm=lcm, template=0, user_template=tags)
    )
    (machine,) = list_tidily(bed.open())
    assert (machine.state, machine.node) == (wanted, "op7")


class TestMachines:
    def test_they_carry_tags_address_and_context(self, bed: OneBed) -> None:
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        assert machine.address == "10.0.0.10"
        (seen,) = machines(bed)
        assert {k: v for k, v in seen.tags.items() if k.startswith("SLURM_ELASTIC_")} == {
            "SLURM_ELASTIC_CLUSTER": UUID,
            "SLURM_ELASTIC_CLUSTER_NAME": "site",
            "SLURM_ELASTIC_CLOUD": NAME,
            "SLURM_ELASTIC_POOL": "op",
            "SLURM_ELASTIC_GENERATION": "g1",
            "SLURM_ELASTIC_NODE": "op1",
            "SLURM_ELASTIC_TYPE": "small",
            "SLURM_ELASTIC_MARKET": "reserved",
            "SLURM_ELASTIC_JOBS": "7,8",
            "SLURM_ELASTIC_ACCOUNT": "physics",
            "SLURM_ELASTIC_USER": "ann",
            "SLURM_ELASTIC_PRICE": "0.02",
        }
        assert seen.context["NETWORK"] == "YES"
        assert seen.context["SET_HOSTNAME"] == "op1"
        assert seen.context["SLURM_ELASTIC_GENERATION"] == "g1"

    def test_the_start_script_survives_oneds_expansion(self, bed: OneBed, tmp_path: Path) -> None:
        script = tmp_path / "user-data"
        script.write_text('#!/bin/sh\necho "hi $HOME ]]> <&>" > $OUT\n')
        launch(bed, user_data=str(script))
        (seen,) = machines(bed)
        text = base64.b64decode(seen.context["START_SCRIPT_BASE64"]).decode()
        assert base64.b64encode(script.read_bytes()).decode()[:40] in text.replace("\n", "")

    def test_resize_sets_cpu_and_memory(self, bed: OneBed) -> None:
        small = OneTemplate(cpus=2, memory=4096, template=1, resize=True)
        launch(bed, types={"small": small})
        bed.running(1)  # template 1 by itself needs 900 cpus

    def test_a_type_whose_template_is_gone_is_not_offered(self, bed: OneBed) -> None:
        gone = OneTemplate(cpus=2, memory=4096, template=4242)
        assert bed.open(types={"other": gone}).offers(bed.pool) == ()
        provider = bed.open(types={"small": gone})
        assert provider.offers(bed.pool) == ()
        (offer,) = bed.open().offers(bed.pool)
        spec = LaunchSpec(generation="g", pool=bed.pool, nodes=("op1",), offer=offer)
        with pytest.raises(ProviderError, match="4242"):
            provider.launch(spec)


def test_a_template_of_others_is_its_own_offers_refusal(bed: OneBed) -> None:
    """The account is all right: other types are offered and started."""
    mine, theirs = world().templates
    bed.control.reset(replace(world(), templates=[mine, replace(theirs, everybody=False)]))
    types = {
        "small": OneTemplate(cpus=2, memory=4096, template=0),
        "theirs": OneTemplate(cpus=2, memory=4096, template=1),
    }
    provider = bed.open(types=types)
    pool = replace(bed.pool, instance_types=("small", "theirs"))
    (offer,) = provider.offers(pool)
    assert offer.instance_type == "small"
    denied = replace(offer, instance_type="theirs")
    spec = LaunchSpec(generation="g", pool=pool, nodes=("op1",), offer=denied)
    with pytest.raises(DeniedError, match=r"USE TEMPLATE \[1\]"):
        provider.launch(spec)


def test_two_clouds_of_one_account_leave_each_others_machines_alone(
    bed: OneBed, caplog: pytest.LogCaptureFixture
) -> None:
    """As two pools of templates with settings of their own."""
    first = bed.settings()
    second = replace(first, name="two")
    config = Config(
        cluster=Cluster(name="site", uuid=UUID),
        clouds=(first, second),
        pools=(
            PoolSettings(name="op", cloud=NAME, nodes="op[1-9]", cpus=2, memory=4096),
            PoolSettings(name="ex", cloud="two", nodes="ex[1-9]", cpus=2, memory=4096),
        ),
    )
    ours, theirs = (open_provider(cloud, config.cluster, config) for cloud in (first, second))
    (mine,) = ours.launch(spec_for(bed, ours, 1))
    assert (len(list_tidily(ours)), list(list_tidily(theirs))) == (1, [])
    theirs.terminate([mine.id, mine.id.replace(NAME, "two")])
    assert bed.alive() == {mine.id}
    tags = {"SLURM_ELASTIC_CLUSTER": UUID, "SLURM_ELASTIC_NODE": "ex1"}
    by_pool = tags | {"SLURM_ELASTIC_CLOUD": "renamed", "SLURM_ELASTIC_POOL": "ex"}
    for number, tagged in ((70, tags), (71, by_pool)):
        bed.control.place(Place(id=number, uid=ELASTIC, template=0, user_template=tagged))
    assert [m.id for m in list_tidily(theirs)] == ["two-71"]
    assert [m.id for m in list_tidily(ours)] == [mine.id]
    assert "machines left alone" in caplog.text


class TestCredentials:
    def test_a_wrong_password_is_an_auth_error_and_never_told(
        self, bed: OneBed, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        bed.login("elastic", "hunter2hunter2")
        with pytest.raises(AuthError) as caught:
            bed.open().check()
        assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"

    def test_a_renewed_one_is_picked_up(self, bed: OneBed) -> None:
        provider = bed.open()
        bed.login("elastic", "wrong")
        with pytest.raises(AuthError):
            provider.check()
        bed.login("elastic", "secretpw")
        provider.check()

    @pytest.mark.parametrize(
        ("text", "mode", "why"),
        [
            ("elastic:secretpw", 0o644, "may be read by others"),
            ("elastic:secretpw", 0o640, "may be read by others"),
            ("elastic", 0o600, "no line of the form"),
            ("", 0o600, "no line of the form"),
            ("elastic:", 0o600, "no line of the form"),
        ],
    )
    def test_a_file_that_will_not_do(self, bed: OneBed, text: str, mode: int, why: str) -> None:
        bed.auth.write_text(text)
        bed.auth.chmod(mode)
        with pytest.raises(AuthError, match=why) as caught:
            bed.open().check()
        assert "secretpw" not in str(caught.value)

    def test_none_at_all(self, bed: OneBed) -> None:
        bed.auth.unlink()
        with pytest.raises(AuthError, match="cannot be read"):
            bed.open().check()

    def test_one_auth_names_the_file(self, bed: OneBed, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ONE_AUTH", str(bed.auth))
        bed.open(auth_file=None).check()

    def test_home_has_the_file(
        self, bed: OneBed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("ONE_AUTH", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".one").mkdir()
        bed.auth.rename(tmp_path / ".one" / "one_auth")
        bed.open(auth_file=None).check()


class TestTransport:
    def test_a_connection_that_is_refused_is_transient(self, bed: OneBed) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/RPC2"
            with pytest.raises(TransientError) as caught:
                bed.open(endpoint=url).check()
        assert caught.value.code == "NotConnected"
        assert is_refusal(caught.value), "nothing was sent"

    def test_another_path_is_not_oned(self, bed: OneBed) -> None:
        with pytest.raises(ProviderError, match="HTTP 404"):
            bed.open(endpoint=f"{bed.control.url}/elsewhere").check()

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<html>not xml-rpc",
            b"<methodResponse><params></params></methodResponse>",
            _ok := b"<methodResponse><params><param><value><array><data><value><boolean>1</boolean>"
            b"</value><value><string></string></value><value><i4>0</i4></value></data></array>"
            b"</value></param></params></methodResponse>",
            _ok.replace(b"<string>", b"<string>&lt;USER&gt;&lt;ID&gt;"),
        ],
    )
    def test_an_answer_that_makes_no_sense_is_transient(self, bed: OneBed, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        with _answering([head + body]) as url, pytest.raises(TransientError):
            bed.open(endpoint=url).check()

    def test_a_byte_now_and_then_holds_nobody_longer_than_the_time_out(self, bed: OneBed) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
        with (
            awake() as took,
            _answering([head, *[b"<"] * 60], pause=0.2) as url,
            pytest.raises(TransientError, match=r"too long|timed out"),
        ):
            bed.open(endpoint=url, timeout=1.0).check()
        assert took() < stretched(1.25)


def test_a_machine_that_powers_itself_off_is_told_as_stopped(bed: OneBed) -> None:
    bed.control.pace(FAST)
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    eventually(lambda: list_tidily(provider)[0].state is InstanceState.RUNNING)
    bed.control.shut_down([int(machine.id.rpartition("-")[2])])
    assert [i.state for i in list_tidily(provider)] == [InstanceState.STOPPED]
    provider.terminate([machine.id])
    eventually(lambda: not list_tidily(provider))


def test_a_fault_in_the_middle_is_told_by_oneds_own_words(bed: OneBed) -> None:
    bed.control.pace(FAST)
    provider = OpenNebulaProvider(bed.settings(), Cluster(name="site", uuid=UUID))
    with pytest.raises(ProviderError, match=r"Method 'one.vm.nosuch' not defined") as caught:
        provider._call("vm.nosuch", 1)
    assert caught.value.code == "Fault-506"


def test_the_program_of_a_machine_writes_its_facts_and_runs_the_others(tmp_path: Path) -> None:
    from slurm_elastic.providers.opennebula.requests import merged

    out = tmp_path / "out"
    template = {"START_SCRIPT": f"echo from-template >> {out}", "SSH_PUBLIC_KEY": "$USER[KEY]"}
    facts = {"cluster": "it's", "node": "op1"}
    context = merged(template, facts, [f"#!/bin/sh\necho 'site $0' >> {out}\n"])
    assert "START_SCRIPT" not in context
    assert context["SSH_PUBLIC_KEY"] == "$USER[KEY]"
    text = base64.b64decode(context["START_SCRIPT_BASE64"]).decode()
    text = text.replace("/run/slurm-elastic", str(tmp_path / "run"))
    (tmp_path / "tmp").mkdir()
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path / "tmp")}
    subprocess.run(["sh", "-c", text], check=True, env=environment)
    assert out.read_text() == "from-template\nsite $0\n"
    assert list((tmp_path / "tmp").iterdir()) == []
    assert (tmp_path / "run" / "node").read_text() == "op1\n"
    shown = f'. {tmp_path}/run/launch; echo "$cluster $node"'
    done = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout == "it's op1\n"


@pytest.mark.parametrize(("codes", "ended"), [((3,), 3), ((3, 0), 0), ((0, 3), 3)])
def test_a_machines_programs_all_run_and_end_as_the_last_one(
    tmp_path: Path, codes: tuple[int, ...], ended: int
) -> None:
    from slurm_elastic.providers.opennebula.requests import merged

    out = tmp_path / "out"
    programs = [f"#!/bin/sh\necho ran >> {out}\nexit {code}\n" for code in codes]
    context = merged({}, {"node": "op1"}, programs)
    text = base64.b64decode(context["START_SCRIPT_BASE64"]).decode()
    text = text.replace("/run/slurm-elastic", str(tmp_path / "run"))
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(["sh", "-c", text], check=False, env=environment)
    assert (done.returncode, out.read_text().count("ran")) == (ended, len(codes))


def test_cloud_init_text_goes_into_the_user_data() -> None:
    from slurm_elastic.providers.opennebula.requests import merged

    context = merged({}, {"node": "op1"}, ["#cloud-config\npackages: [munge]\n"])
    assert context["USERDATA_ENCODING"] == "base64"
    text = base64.b64decode(context["USER_DATA"]).decode()
    assert text.index("cloud-boothook") < text.index("text/cloud-config")
    assert "packages: [munge]" in text


def _checked(settings: object) -> None:
    import msgspec

    msgspec.convert(msgspec.to_builtins(settings), type=type(settings))


class _answering:  # noqa: N801 - read as a word
    """A server that answers every connection with these pieces, ``pause`` seconds apart."""

    def __init__(self, pieces: list[bytes], pause: float = 0.0) -> None:
        self._pieces, self._pause = pieces, pause
        self._stop = threading.Event()

    def __enter__(self) -> str:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/RPC2"

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with socket.create_connection(self._listener.getsockname()):
            pass
        self._thread.join(patience(30))
        self._listener.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            connection, _ = self._listener.accept()
            with connection:
                self._speak(connection)

    def _speak(self, connection: socket.socket) -> None:
        try:
            if self._stop.is_set() or not connection.recv(65536):
                return
            for piece in self._pieces:
                connection.sendall(piece)
                if self._stop.wait(self._pause):
                    return
        except OSError:
            return


def test_without_pyone_the_cloud_names_the_extra() -> None:
    program = """
import sys
sys.modules["pyone"] = None
from slurm_elastic.config import Cluster
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.providers import open_provider
kind = OneTemplate(cpus=1, memory=1, template=1)
cloud = OpenNebulaCloud(name="n", location="on-premises", endpoint="http://x", types={"t": kind})
try:
    open_provider(cloud, Cluster(name="c", uuid="u"))
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install '.[opennebula]'" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "written",
    [
        {"SLURM_ELASTIC_CLUSTER": "nobody"},
        {"SLURM_ELASTIC_NODE": "neb2", "SLURM_ELASTIC_PRICE": "0"},
    ],
)
def test_a_machine_that_rewrites_its_own_attributes_stays_what_it_is(
    bed: OneBed, written: dict[str, str]
) -> None:
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    eventually(lambda: list_tidily(provider)[0].state is InstanceState.RUNNING)
    number = int(machine.id.rpartition("-")[2])
    # The call that OneGate makes for `onegate vm update --data`.
    call = FrontEnd(bed.settings(api_timeout=10.0)).call
    call("vm.update", number, {"TEMPLATE": written}, 1)
    restarted = bed.open()
    (listed,) = list_tidily(restarted)
    assert (listed.node, listed.price) == (machine.node, machine.price)
    assert restarted.terminate([machine.id]) == {machine.id: EndAnswer.ENDED}
    eventually(lambda: not bed.alive())


def test_a_machine_gets_no_token_of_onegate(bed: OneBed) -> None:
    launch(bed)
    call = FrontEnd(bed.settings(api_timeout=10.0)).call
    assert call("vm.info", machines(bed)[0].id).TEMPLATE["CONTEXT"]["TOKEN"] == "NO"
