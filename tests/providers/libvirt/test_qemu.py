"""The libvirt provider on qemu itself: domains with volumes, which have nothing to boot."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import suppress

import pycdlib
import pytest
from libvirt_hosts import Fault
from patience import patience

from slurm_elastic.base.errors import CapacityError, ProviderError, TransientError
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec
from slurm_elastic.providers.libvirt.settings import LibvirtType
from slurm_elastic.testing.contract import LaunchContract, spec_for

from .bed import IMAGE, LibvirtBed

pytestmark = pytest.mark.engine


@pytest.fixture
def bed(qemu: LibvirtBed) -> LibvirtBed:
    return qemu


class TestQemuLaunches(LaunchContract): ...


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(60)
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def content(bed: LibvirtBed, name: str) -> bytes:
    volume, out = bed.storage.storageVolLookupByName(name), io.BytesIO()
    stream = bed.hand.newStream()
    volume.download(stream, 0, 0)
    stream.recvAll(lambda _, data, to: to.write(data), out)
    stream.finish()
    return out.getvalue()


def test_a_machine_has_a_disk_on_the_image_and_a_seed_that_tells_its_node(bed: LibvirtBed) -> None:
    script = bed.domain.with_name("user-data.sh")
    script.write_text("#!/bin/sh\necho the site's own\n")
    script.chmod(0o644)
    large = {"small": LibvirtType(cpus=1, memory=16, disk=2)}
    provider = bed.open(user_data=str(script), types=large)
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    disk, seed = sorted(bed.volumes(), key=lambda name: name.endswith(".iso"))
    assert "vm1" in disk
    told = bed.storage.storageVolLookupByName(disk)
    assert told.info()[1] == 2 << 30
    assert f"/{IMAGE}</path>" in told.XMLDesc().partition("<backingStore>")[2]
    image = pycdlib.PyCdlib()
    image.open_fp(io.BytesIO(content(bed, seed)))
    files = {}
    for name in ("/meta-data", "/user-data"):
        out = io.BytesIO()
        image.get_file_from_iso_fp(out, joliet_path=name)
        files[name] = out.getvalue().decode()
    assert image.pvd.volume_identifier.strip() == b"cidata"
    image.close()
    assert files["/meta-data"] == f"instance-id: {machine.id}\nlocal-hostname: vm1\n"
    assert "node=vm1" in files["/user-data"]
    assert "the site's own" in files["/user-data"]


def test_an_end_leaves_no_volume_but_those_of_others(bed: LibvirtBed) -> None:
    bed.storage.createXML("<volume><name>vm1.qcow2</name><capacity>512</capacity></volume>")
    provider = bed.open()
    machines = provider.launch(spec_for(bed, provider, 2))
    provider.terminate([machines[0].id])
    left = bed.volumes() - {"vm1.qcow2"}
    assert len(left) == 2
    assert all("-vm2-" in name for name in left)
    assert {"vm1.qcow2"} < bed.volumes()


@pytest.mark.release
def test_one_that_powers_itself_off_has_ended(bed: LibvirtBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    (machine,) = provider.launch(spec)
    bed.domains()[machine.id].destroy()
    assert list(provider.instances()) == []
    with pytest.raises(CapacityError, match="have ended"):
        provider.launch(spec)


@pytest.mark.release
def test_what_qemu_refuses_leaves_nothing(bed: LibvirtBed) -> None:
    """The definition is sound, but the start is refused. On a busy machine libvirt at times asks for
    qemu's own words before qemu has said them.
    """
    bed.domain.write_text(
        "<domain><os><type>hvm</type><kernel>/nowhere</kernel></os><devices/></domain>"
    )
    provider = bed.open()
    with pytest.raises(ProviderError, match=r"nowhere|closed the monitor") as caught:
        provider.launch(spec_for(bed, provider, 2))
    assert not isinstance(caught.value, TransientError)
    assert bed.domains() == {}
    assert bed.volumes() == set()


@pytest.mark.release
def test_one_that_was_never_started_is_started_by_the_repetition(bed: LibvirtBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 2)
    bed.proxy.fail(Fault(procedures=("create",), drop=True))
    with pytest.raises(ProviderError):
        provider.launch(spec)
    bed.heal()
    assert {m.state for m in bed.open().instances()} == {InstanceState.PENDING}
    machines = repeated(bed, spec)
    assert {m.state for m in machines} == {InstanceState.RUNNING}
    assert bed.alive() == {m.id for m in machines}
    assert len(bed.volumes()) == 4


def repeated(bed: LibvirtBed, spec: LaunchSpec) -> list[Instance]:
    """The launch once more, as by a daemon; the host may be busy yet with what a connection sent."""
    made: list[Instance] = []

    def taken() -> bool:
        with suppress(TransientError):
            made[:] = bed.open().launch(spec)
        return bool(made)

    until(taken)
    return made


@pytest.mark.release
def test_machines_go_on_while_libvirtd_restarts(bed: LibvirtBed) -> None:
    provider = bed.open()
    machines = provider.launch(spec_for(bed, provider, 1))
    bed.restart()
    until(lambda: {m.id for m in bed.open().instances()} == {m.id for m in machines})
    with pytest.raises(ProviderError):  # its connection is gone; so it is told, once
        provider.instances()
    assert [m.state for m in provider.instances()] == [InstanceState.RUNNING]
    provider.terminate([machines[0].id])
    assert bed.alive() == set()


@pytest.mark.release
def test_one_that_is_stopped_keeps_its_disk_and_is_started_with_it(bed: LibvirtBed) -> None:
    """Nothing is booted that could shut down: it is switched off as a guest would do itself."""
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    disks = bed.volumes()
    provider.stop([machine.id])
    assert [m.state for m in provider.instances()] == [InstanceState.RUNNING], "it shuts down yet"
    bed.domains()[machine.id].destroy()
    for look in (provider, bed.open()):
        assert [(m.id, m.state) for m in look.instances()] == [(machine.id, InstanceState.STOPPED)]
    assert bed.volumes() == disks
    provider.start(machine.id)
    assert [m.state for m in bed.open().instances()] == [InstanceState.RUNNING]
    bed.domains()[machine.id].destroy()
    assert list(provider.instances()) == [], "nobody asked for that: it has ended"
    provider.terminate([machine.id])
    assert bed.volumes() == set()
