"""A person moves a machine to another host (``virsh migrate --live``), over two real libvirtds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from libvirt_hosts import running_libvirtd
from msgspec.structs import replace
from providers.libvirt.bed import DRIVERS, HOST, LibvirtBed

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import EndAnswer, Instance, InstanceState
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.base.hosts.host_rows import ENDED_KEPT_S
from slurm_elastic.providers.libvirt import machine as domain_machine
from slurm_elastic.providers.libvirt.hosts import bindings
from slurm_elastic.providers.libvirt.provider import LibvirtProvider
from slurm_elastic.providers.libvirt.settings import LibvirtHost
from slurm_elastic.testing.contract import UUID, spec_for

OTHER = "kvm2"


class Pair:
    """Two hosts. libvirt's test driver cannot migrate, so ``move`` leaves what a migration leaves:
    the definition, off, at the source, and the domain without a definition at the target.
    """

    def __init__(self, bed: LibvirtBed, uri: str, order: tuple[str, str]) -> None:
        self.bed, self.target, self.now = bed, bindings().open(uri), 0.0
        settings = bed.settings()
        other = LibvirtHost(uri=uri, cpus=2000, memory=10**8)
        hosts = {HOST: settings.hosts[HOST], OTHER: other}
        ordered = bed.settings(hosts={name: hosts[name] for name in order})
        opened = open_provider(ordered, Cluster(name="site", uuid=UUID))
        assert isinstance(opened, LibvirtProvider)
        self.provider = opened
        self.provider._removals._clock = lambda: self.now

    def launch(self) -> Instance:
        spec = spec_for(self.bed, self.provider, 1)
        (machine,) = self.provider.launch(replace(spec, offer=replace(spec.offer, zone=HOST)))
        return machine

    def move(self, machine: Instance) -> None:
        domain = self.bed.hand.lookupByUUIDString(machine.id)
        description = domain.XMLDesc()
        domain.destroy()
        self.target.createXML(description)

    def runs(self, machine: Instance) -> bool:
        return machine.id in {d.UUIDString() for d in self.target.listAllDomains() if d.isActive()}


@pytest.fixture(params=[(HOST, OTHER), (OTHER, HOST)])
def pair(bed: LibvirtBed, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with running_libvirtd() as second:
        made = Pair(bed, second.uri(DRIVERS["test"]), request.param)
        yield made
        made.target.close()


def test_a_moved_machine_keeps_its_disk_and_is_ended_where_it_runs(pair: Pair) -> None:
    machine = pair.launch()
    disks = pair.bed.volumes()
    pair.provider.tidy()
    pair.move(machine)
    for _ in range(3):
        (listed,) = pair.provider.tidy()
        assert listed.state is InstanceState.RUNNING
        pair.now += ENDED_KEPT_S
    assert pair.bed.volumes() == disks
    assert pair.provider.terminate([machine.id]) == {machine.id: EndAnswer.ENDED}
    assert not pair.runs(machine)
    assert pair.provider.tidy() == ()
    pair.now += ENDED_KEPT_S
    pair.provider.tidy()
    assert pair.bed.volumes() == set()


def test_a_domain_that_is_off_because_it_was_migrated_runs_until_its_end_is_noted() -> None:
    tags: dict[str, Any] = {}
    how = domain_machine.OFF, domain_machine.MIGRATED
    assert domain_machine.is_moved(*how, tags)
    assert domain_machine.state_of(*how, tags, 0.0) is InstanceState.RUNNING
    ended = {domain_machine.ENDED: "1"}
    assert not domain_machine.is_moved(*how, ended)
    assert domain_machine.state_of(*how, ended, 0.0) is InstanceState.TERMINATED
