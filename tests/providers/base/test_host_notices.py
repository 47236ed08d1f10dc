"""Hosts that are taken out of service: which machines are warned of, and who may see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated import running_one
from providers.opennebula.bed import OneBed
from providers.openstack.bed import LIST, StackBed
from providers.openstack.stand_in import StandIn

from slurm_elastic.model.cluster import NoticeKind
from slurm_elastic.providers.openstack.instances import Servers
from slurm_elastic.providers.openstack.notices import (
    NOTICES_TTL_S,
    RETRY_HIDDEN_S,
    OpenStackNotices,
)
from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.sandbox.nebula.world import OneHost
from slurm_elastic.testing.contract import spec_for

ROOM = {"cpu": 10**6, "memory": 10**10}


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneControl]:
    with running_one(tmp_path_factory.mktemp("one")) as running:
        yield running


class TestOpenNebula:
    @pytest.mark.parametrize(
        ("state", "kind", "word"),
        [
            (4, NoticeKind.REBALANCE, "disabled"),
            (7, NoticeKind.REBALANCE, "disabled"),
            (8, NoticeKind.INTERRUPTION, "offline"),
        ],
    )
    def test_machines_on_a_host_that_is_taken_out(
        self, control: OneControl, tmp_path: Path, state: int, kind: NoticeKind, word: str
    ) -> None:
        bed = OneBed(control, tmp_path)
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        bed.add_foreign()
        bed.running(2)
        assert list(provider.notices()) == []
        bed.control.hosts([OneHost(id=0, name="rack7", state=state, **ROOM)])
        (notice,) = provider.notices()
        assert (notice.instance, notice.kind, notice.deadline) == (machine.id, kind, None)
        assert notice.reason == f"OpenNebula: host rack7 is {word}"
        bed.control.hosts([OneHost(id=0, name="rack7", **ROOM)])
        assert list(provider.notices()) == []

    def test_machines_on_other_hosts_are_not_meant(
        self, control: OneControl, tmp_path: Path
    ) -> None:
        bed = OneBed(control, tmp_path)
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 1))
        bed.running(1)
        bed.control.hosts([OneHost(id=0, name="up", **ROOM), OneHost(id=1, name="off", state=8)])
        assert list(provider.notices()) == []

    def test_an_account_that_sees_no_hosts_hears_nothing(
        self, control: OneControl, tmp_path: Path
    ) -> None:
        bed = OneBed(control, tmp_path, user="elastic")
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 1))
        bed.running(1)
        bed.control.hosts([OneHost(id=0, name="big", state=8, **ROOM)])
        asked = bed.calls("one.vmpool.infoextended")
        assert list(provider.notices()) == []
        assert bed.calls("one.vmpool.infoextended") == asked, "machines are not even listed"


@pytest.fixture(scope="module")
def stand_in() -> Iterator[StandIn]:
    with StandIn().serving() as running:
        yield running


class TestOpenStack:
    def test_servers_on_a_host_in_maintenance(self, stand_in: StandIn, tmp_path: Path) -> None:
        bed = StackBed(stand_in, tmp_path)
        provider = bed.open()
        one, other = (m.id for m in provider.launch(spec_for(bed, provider, 2)))
        theirs = stand_in.add(host_status="MAINTENANCE")
        bed.world.servers[one]["host_status"] = "MAINTENANCE"
        bed.world.servers[other]["host_status"] = "DOWN"
        for server in (one, other, theirs):
            bed.world.servers[server]["status"] = "ACTIVE"
        (notice,) = bed.open().notices()
        assert (notice.instance, notice.kind) == (one, NoticeKind.INTERRUPTION)
        assert notice.deadline is None
        assert "maintenance" in notice.reason

    def test_where_nova_hides_its_hosts_it_is_hardly_ever_asked(
        self, stand_in: StandIn, tmp_path: Path
    ) -> None:
        bed = StackBed(stand_in, tmp_path)
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        bed.world.servers[machine.id]["status"] = "ACTIVE"
        servers = provider._servers  # type: ignore[attr-defined]
        assert isinstance(servers, Servers)
        clock = [0.0]
        notices = OpenStackNotices(servers.live, lambda: 5.0, lambda: clock[0])
        asked = stand_in.calls(LIST)
        for clock[0] in (0.0, NOTICES_TTL_S + 1, RETRY_HIDDEN_S - 1):
            assert list(notices.standing()) == []
        assert stand_in.calls(LIST) == asked + 1
        clock[0] = RETRY_HIDDEN_S + 1
        bed.world.servers[machine.id]["host_status"] = "MAINTENANCE"
        (notice,) = notices.standing()
        assert notice.seen == 5.0
        bed.world.servers[machine.id]["host_status"] = "UP"
        clock[0] += NOTICES_TTL_S - 1
        assert len(notices.standing()) == 1
        clock[0] += 2
        assert list(notices.standing()) == []
