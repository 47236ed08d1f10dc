"""Libvirt's own: room, marks, several hosts, what is left of a launch, refusals, doctor."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
from libvirt_hosts import Fault

from slurm_elastic.base.errors import CapacityError, ConfigError, ProviderError, TransientError
from slurm_elastic.config import configfile
from slurm_elastic.model.cluster import InstanceState, LaunchSpec
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.providers.base.hosts.host_rows import ENDED_KEPT_S
from slurm_elastic.providers.libvirt import machine
from slurm_elastic.providers.libvirt.provider import LibvirtProvider
from slurm_elastic.providers.libvirt.settings import LibvirtHost, LibvirtType, Virtualization
from slurm_elastic.testing.contract import UUID, spec_for

from .bed import HOST, LibvirtBed

pytestmark = pytest.mark.usefixtures("guarded")


def opened(bed: LibvirtBed, **more: Any) -> LibvirtProvider:
    provider = bed.open(**more)
    assert isinstance(provider, LibvirtProvider)
    return provider


def test_a_domain_that_others_may_write_is_refused(bed: LibvirtBed, tmp_path: Path) -> None:
    file = tmp_path / "domain.xml"
    file.write_text("<domain><devices/></domain>")
    file.chmod(0o664)
    with pytest.raises(ConfigError, match=r"domain of cloud .* may be written by others"):
        opened(bed, domain_file=str(file))


def test_a_clone_of_a_machine_is_nobodys_to_end(bed: LibvirtBed) -> None:
    (one,) = bed.open().launch(spec_for(bed, bed.open(), 1))
    number = str(uuid.uuid4())
    text = bed.hand.lookupByUUIDString(one.id).XMLDesc()
    name = bed.hand.lookupByUUIDString(one.id).name()
    clone = bed.hand.defineXML(text.replace(one.id, number).replace(name, "for-a-look"))
    clone.create()
    provider = bed.open()
    assert [m.id for m in provider.instances()] == [one.id]
    provider.terminate([number, one.id])
    assert bed.alive() == {number}


class TestRoom:
    def test_offers_are_bounded_by_what_all_domains_leave(self, bed: LibvirtBed) -> None:
        bed.limit(4)
        provider = opened(bed)
        assert [(o.zone, o.free) for o in provider.offers(bed.pool)] == [(HOST, 4)]
        bed.add_foreign(cpus=3)
        (offer,) = provider.offers(bed.pool)
        assert offer.free == 1
        assert offer.free_reason == "5 of 6 cpus are given out"  # 2 are the driver's own domain's

    def test_devices_of_the_sites_domain_are_in_the_offer(self, bed: LibvirtBed) -> None:
        types = {"small": LibvirtType(cpus=1, memory=16, gres={"gpu": 2})}
        assert opened(bed, types=types).offers(bed.pool)[0].gres == {"gpu": 2}

    def test_memory_bounds_them_too_and_is_the_hosts_but_for_a_tenth(self, bed: LibvirtBed) -> None:
        """The test driver's host has 3072 MiB, and its own domain more than that."""
        hosts = {HOST: LibvirtHost(uri=bed.settings().hosts[HOST].uri, cpus=16)}
        (offer,) = opened(bed, hosts=hosts).offers(bed.pool)
        assert offer.free == 0
        assert offer.free_reason.endswith("of 2764 MiB are given out")

    def test_a_domain_that_is_off_takes_no_room(self, bed: LibvirtBed) -> None:
        bed.limit(2)
        provider = opened(bed)
        spec = spec_for(bed, provider, 2)
        machines = provider.launch(spec)
        assert provider.offers(bed.pool)[0].free == 0
        provider.terminate([machines[0].id])
        assert provider.offers(bed.pool)[0].free == 1

    def test_one_that_is_yet_to_start_takes_its_room(self, bed: LibvirtBed) -> None:
        bed.limit(2)
        provider = opened(bed)
        cut_off(bed, provider, 1)
        assert provider.offers(bed.pool)[0].free == 1


def cut_off(bed: LibvirtBed, provider: LibvirtProvider, count: int) -> LaunchSpec:
    """A launch of which nothing but definitions is left."""
    spec = spec_for(bed, provider, count)
    bed.proxy.fail(Fault(procedures=("create",), drop=True))
    with pytest.raises(TransientError):
        provider.launch(spec)
    bed.heal()
    return spec


class TestHalves:
    def test_one_is_ended_whole(self, bed: LibvirtBed) -> None:
        provider = opened(bed)
        cut_off(bed, provider, 1)
        (half,) = provider.instances()
        assert half.state is InstanceState.PENDING
        provider.terminate([half.id])
        assert bed.domains() == {}
        assert bed.volumes() == set()

    def test_one_that_is_old_has_ended(
        self, bed: LibvirtBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As are machines that a host's restart has left off: libvirt has no reason for either."""
        provider = opened(bed)
        spec = cut_off(bed, provider, 1)
        monkeypatch.setattr(machine, "START_WITHIN_S", -1.0)
        assert list(provider.instances()) == []
        with pytest.raises(CapacityError, match="have ended"):
            provider.launch(spec)


class TestEnds:
    def test_a_definition_is_kept_for_an_hour(self, bed: LibvirtBed) -> None:
        now = 0.0
        provider = opened(bed)
        provider._removals._clock = lambda: now
        (one,) = provider.launch(spec_for(bed, provider, 1))
        provider.terminate([one.id])
        assert bed.volumes() == set()
        provider.tidy()
        now = ENDED_KEPT_S - 1
        provider.tidy()
        assert set(bed.domains()) == {one.id}
        now = ENDED_KEPT_S
        provider.tidy()
        assert bed.domains() == {}

    def test_a_machine_with_a_snapshot_is_removed_too(self, bed: LibvirtBed) -> None:
        now = 0.0
        provider = opened(bed)
        provider._removals._clock = lambda: now
        (one,) = provider.launch(spec_for(bed, provider, 1))
        domain = bed.hand.lookupByUUIDString(one.id)
        domain.snapshotCreateXML("<domainsnapshot><name>backup</name></domainsnapshot>")
        domain.destroy()
        provider.tidy()
        now = ENDED_KEPT_S
        provider.tidy()
        assert bed.domains() == {}
        assert bed.volumes() == set()

    def test_nothing_is_remembered_of_one_whose_definition_is_gone(self, bed: LibvirtBed) -> None:
        provider = opened(bed)
        (one,) = provider.launch(spec_for(bed, provider, 1))
        provider.terminate([one.id])
        assert provider._changed == {HOST: {one.id}}
        bed.hand.lookupByUUIDString(one.id).undefine()
        provider.tidy()
        assert provider._changed == {HOST: set()}

    def test_one_that_somebody_started_again_is_a_machine_and_stays_one(
        self, bed: LibvirtBed
    ) -> None:
        now = 0.0
        provider = opened(bed)
        provider._removals._clock = lambda: now
        (one,) = provider.launch(spec_for(bed, provider, 1))
        bed.domains()[one.id].destroy()
        provider.tidy()
        bed.domains()[one.id].create()
        now = ENDED_KEPT_S
        assert [m.id for m in provider.tidy()] == [one.id]
        assert len(bed.volumes()) == 2

    def test_a_volume_that_is_gone_is_no_obstacle(self, bed: LibvirtBed) -> None:
        provider = opened(bed)
        (one,) = provider.launch(spec_for(bed, provider, 1))
        for name in bed.volumes():
            bed.storage.storageVolLookupByName(name).delete()
        provider.terminate([one.id])
        assert bed.alive() == set()


class TestRefusals:
    def test_a_missing_image_starts_nothing_and_says_so(self, bed: LibvirtBed) -> None:
        provider = opened(bed, image="other.qcow2")
        with pytest.raises(ProviderError, match=r"other\.qcow2") as caught:
            provider.launch(spec_for(bed, provider, 1))
        assert caught.value.code == "NoVolume"
        assert bed.domains() == {}

    def test_a_refused_start_leaves_nothing(self, bed: LibvirtBed) -> None:
        provider = opened(bed)
        full = (
            1,
            10,
            "internal error: qemu: cannot set up guest memory 'pc.ram': Cannot allocate memory",
        )
        bed.proxy.fail(Fault(procedures=("create",), error=full))
        with pytest.raises(CapacityError) as caught:
            provider.launch(spec_for(bed, provider, 1))
        assert caught.value.code == "NoMemory"
        assert bed.domains() == {}
        assert bed.volumes() == set()


class TestHosts:
    def test_one_that_was_silent_is_asked_again(self, bed: LibvirtBed) -> None:
        provider = opened(bed, timeout=3.0)
        provider.check()
        bed.fall_silent()
        for _ in range(3):
            with pytest.raises(TransientError) as caught:
                provider.check()
            assert caught.value.code == "Timeout"
        bed.heal()
        provider.check()

    def test_nobody_there_is_a_sentence(self, bed: LibvirtBed, tmp_path: Path) -> None:
        hosts = {HOST: LibvirtHost(uri=f"qemu+unix:///session?socket={tmp_path}/none")}
        with pytest.raises(TransientError, match=r"kvm1: .*No such file") as caught:
            opened(bed, hosts=hosts).check()
        assert caught.value.code == "Unreachable"


class TestDomains:
    def test_the_sites_own_is_the_base(self, bed: LibvirtBed) -> None:
        bed.domain.write_text(
            "<domain><name>mine</name><uuid>no</uuid><vcpu>9</vcpu><memory>1</memory>"
            "<title>lab</title><os><type>hvm</type></os><devices><input type='tablet'/></devices></domain>"
        )
        provider = opened(bed)
        (one,) = provider.launch(spec_for(bed, provider, 1))
        text = bed.domains()[one.id].XMLDesc()
        assert "<title>lab</title>" in text
        assert "tablet" in text
        assert bed.domains()[one.id].info()[1:4] == [16 << 10, 16 << 10, 1]
        assert bed.domains()[one.id].name().startswith("site-vm1-")

    @pytest.mark.parametrize(
        ("text", "why"),
        [("<domain", "cannot be used"), ("<network/>", "is <network>"), ("<domain/>", "with <devices>")],
    )  # fmt: skip
    def test_one_that_is_none_is_refused(self, bed: LibvirtBed, text: str, why: str) -> None:
        bed.domain.write_text(text)
        with pytest.raises(ConfigError, match=why):
            opened(bed)

    def test_the_default_one_is_accepted(self, bed: LibvirtBed) -> None:
        provider = opened(bed, domain_file=None)
        assert len(provider.launch(spec_for(bed, provider, 1))) == 1
        assert provider.instances()[0].address is not None  # as the driver's own DHCP has it

    def test_its_marks_say_whose_it_is(self, bed: LibvirtBed) -> None:
        provider = opened(bed)
        (one,) = provider.launch(spec_for(bed, provider, 1))
        tags = machine.tags_in(bed.marks(one.id))
        assert tags["slurm-elastic:cluster"] == UUID
        assert tags["slurm-elastic:nodes"] == "vm1"
        assert tags["slurm-elastic:jobs"] == "7,8"


class TestDoctor:
    def test_all_is_well(self, bed: LibvirtBed) -> None:
        found = opened(bed, domain_file=None).examine([])
        assert {f.level for f in found} == {FindingLevel.OK}
        assert [f.subject.partition(" ")[0] for f in found] == [
            "libvirt",
            "virtualization",
            "image",
            "network",
        ]
        assert found[0].observed.endswith(", 16 cpus, 3072 MiB")

    def test_each_thing_that_is_missing_is_named(self, bed: LibvirtBed) -> None:
        found = opened(
            bed, domain_file=None, image="no.qcow2", network="no", virtualization=Virtualization.KVM
        ).examine([])
        wrong = [f.subject for f in found if f.level is FindingLevel.WRONG]
        assert wrong == [
            "virtualization on kvm1", "image no.qcow2 of default-pool on kvm1", "network no on kvm1",
        ]  # fmt: skip

    def test_a_host_that_does_not_answer_is_one_finding(self, bed: LibvirtBed) -> None:
        bed.proxy.fail(Fault(drop=True))
        (found,) = opened(bed).examine([])
        assert found.level is FindingLevel.WRONG
        assert "virsh" in found.advice


def test_settings_that_make_no_sense_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "slurm-elastic.yaml"
    file.write_text(
        textwrap.dedent("""\
        cluster: {name: alps}
        clouds:
          - name: lab
            provider: libvirt
            location: on-premises
            hosts:
              a: {uri: "qemu+ssh://slurm@kvm1/system"}
              b: {uri: "qemu+ssh://slurm@kvm1/system"}
              c: {uri: "http://kvm1"}
            image: a/b
            types: {small: {cpus: 4, memory: 8G, gres: {gpu: 1}}}
        pools:
          - {name: vm, cloud: lab, nodes: vm1, cpus: 4, memory: 8G, instance_types: [small]}
        """)
    )
    with pytest.raises(ConfigError) as caught:
        configfile.load(file)
    assert [p.partition(": clouds[0] (lab).")[2] for p in caught.value.problems] == [
        "hosts.b.uri: found 'qemu+ssh://slurm@kvm1/system', which hosts.a has already, expected a uri of its own",
        "hosts.c.uri: found 'http://kvm1', expected libvirt's, such as qemu+ssh://USER@HOST/system",
        "image: found 'a/b', expected a name, without blanks, quotes or /",
        "types.small.gres: found gpu, expected no gres, or a domain that has the devices",
    ]
    file.write_text(file.read_text().replace("image:", "virtualization: xen\n    image:"))
    with pytest.raises(ConfigError, match="found 'xen', expected one of kvm, qemu, test"):
        configfile.load(file)


@pytest.mark.parametrize(
    ("uri", "word"),
    [
        ("qemu+tls://kvm1/system?no_verify=1", "no_verify=1"),
        ("qemu+ssh://slurm@kvm1/system?keyfile=/k&no%5Fverify=1", "no_verify=1"),
        ("qemu+libssh2://slurm@kvm1/system?known_hosts_verify=auto", "known_hosts_verify=auto"),
        ("qemu+libssh://slurm@kvm1/system?x=1;known_hosts_verify=ignore", "known_hosts_verify=ignore"),
        ("qemu+tls://kvm1/system?no_verify=0", ""),
        ("qemu+libssh2://slurm@kvm1/system?known_hosts_verify=normal", ""),
    ],
)  # fmt: skip
def test_a_host_has_to_prove_who_it_is(uri: str, word: str) -> None:
    text = textwrap.dedent(f"""\
        cluster: {{name: alps}}
        clouds:
          - name: lab
            provider: libvirt
            location: on-premises
            hosts: {{a: {{uri: "{uri}"}}}}
            image: a
            types: {{small: {{cpus: 4, memory: 8G}}}}
        pools:
          - {{name: vm, cloud: lab, nodes: vm1, cpus: 4, memory: 8G, instance_types: [small]}}
        """)
    if not word:
        configfile.parse(text, "site.yaml")
        return
    with pytest.raises(ConfigError, match=f"expected a host that proves who it is, without {word}"):
        configfile.parse(text, "site.yaml")


def test_without_bindings_one_sentence_says_what_to_install() -> None:
    program = """
        import sys
        sys.modules["libvirt"] = None
        from slurm_elastic.config import Cluster
        from slurm_elastic.base.errors import ConfigError
        from slurm_elastic.providers import open_provider
        from slurm_elastic.providers.libvirt.settings import LibvirtCloud, LibvirtHost, LibvirtType
        cloud = LibvirtCloud(name="lab", location="on-premises", hosts={"a": LibvirtHost()},
                             image="i", types={"t": LibvirtType(cpus=1, memory=1)})
        try:
            open_provider(cloud, Cluster(name="c", uuid="u"))
        except ConfigError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert "install the distribution's python3-libvirt" in done.stdout
    assert done.stderr == ""
