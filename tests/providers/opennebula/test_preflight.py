"""Doctor's findings on OpenNebula: version, templates, images, quotas, hosts."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from providers.opennebula.bed import OneBed, world

from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.protocols import Examinable
from slurm_elastic.providers.opennebula import capacity
from slurm_elastic.providers.opennebula.provider import OpenNebulaProvider
from slurm_elastic.providers.opennebula.settings import OneTemplate
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.control import OneControl, OneQuota
from slurm_elastic.sandbox.nebula.place import Place
from slurm_elastic.sandbox.nebula.world import EmulatedImage, OneHost, vm_template
from slurm_elastic.testing.contract import UUID, spec_for

ELASTIC = 2


@pytest.fixture
def bed(control: OneControl, tmp_path: Path) -> OneBed:
    """By an account that sees no hosts, as most do."""
    return OneBed(control, tmp_path, user="elastic")


def examined(bed: OneBed, image: ImageChoice | None = None, **settings: Any) -> dict[str, Finding]:
    provider = bed.open(**settings)
    assert isinstance(provider, Examinable)
    return {f.subject: f for f in provider.examine([replace(bed.pool, image=image)])}


def test_a_cloud_where_all_is_well(bed: OneBed) -> None:
    found = examined(bed)
    assert {f.level for f in found.values()} == {FindingLevel.OK}
    assert found["OpenNebula"].observed == "version 6.10.5"
    assert found["template 0 of type small"].observed == "worker"
    assert found["image 0 of type small"].observed == "debian12"
    assert found["quotas"].observed == "the account has none of its own"
    assert "not shown" in found["hosts"].observed


def test_an_old_release_is_a_note(bed: OneBed) -> None:
    made = world()
    made.version = "5.12.0"
    bed.control.reset(made)
    assert examined(bed)["OpenNebula"].level is FindingLevel.NOTE


def test_a_template_that_is_not_there(bed: OneBed) -> None:
    found = examined(bed, types={"small": OneTemplate(cpus=2, memory=4096, template=99)})
    missing = found["template 99 of type small"]
    assert missing.level is FindingLevel.WRONG
    assert "NoExists" in missing.observed


def test_a_template_that_the_account_may_not_use(bed: OneBed) -> None:
    made = world()
    made.templates[0].everybody = False
    bed.control.reset(made)
    finding = examined(bed)["template 0 of type small"]
    assert finding.level is FindingLevel.WRONG
    assert "rights" in finding.advice


def test_a_template_that_is_smaller_than_the_settings_say(bed: OneBed) -> None:
    types = {"large": OneTemplate(cpus=16, memory=65536, template=0)}
    finding = examined(bed, types=types)["template 0 of type large"]
    assert (finding.level, finding.observed) == (
        FindingLevel.WRONG,
        "worker, with 2 vcpus and 4096 MiB",
    )
    resized = {"large": OneTemplate(cpus=16, memory=65536, template=0, resize=True)}
    assert examined(bed, types=resized)["template 0 of type large"].level is FindingLevel.OK


def test_a_template_with_a_token_of_onegate_is_a_note(bed: OneBed) -> None:
    made = world()
    made.templates[0].template["CONTEXT"] = [{"TOKEN": "YES"}]
    bed.control.reset(made)
    found = examined(bed)["context of template 0 of type small"]
    assert (found.level, found.observed) == (FindingLevel.NOTE, "TOKEN=YES")


def test_a_template_without_plain_numbers_is_a_note(bed: OneBed) -> None:
    made = world()
    del made.templates[0].template["MEMORY"]
    bed.control.reset(made)
    assert examined(bed)["template 0 of type small"].level is FindingLevel.NOTE


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (None, "NoExists"),
        (EmulatedImage(id=0, name="node", everybody=False), "Authorization"),
        (EmulatedImage(id=0, name="node", state=5), "is in state ERROR"),
        (EmulatedImage(id=0, name="node", persistent=True), "is persistent"),
    ],
)
def test_the_image_of_a_template_that_cannot_serve(
    bed: OneBed, image: EmulatedImage | None, words: str
) -> None:
    made = world()
    made.images[:] = [image] if image else []
    bed.control.reset(made)
    finding = examined(bed)["image 0 of type small"]
    assert finding.level is FindingLevel.WRONG
    assert words in finding.observed
    assert finding.advice


def test_images_that_pools_look_for(bed: OneBed) -> None:
    good = examined(bed, image=ImageChoice(name="debian*"))["image of pool op"]
    assert (good.level, good.observed) == (FindingLevel.OK, "debian12")
    bad = examined(bed, image=ImageChoice(name="plan9"))["image of pool op"]
    assert bad.level is FindingLevel.WRONG
    assert "no image has the name plan9" in bad.observed


class TestQuotas:
    def test_enough_and_too_little(self, bed: OneBed) -> None:
        bed.control.quota(OneQuota(user=ELASTIC, vm={"VMS": 10, "CPU": 10000, "MEMORY": 1000}))
        found = examined(bed)
        few = found["quota of VMS"]
        assert few.level is FindingLevel.NOTE
        assert few.observed.startswith("10 machines, of which others use 0;")
        assert few.observed.endswith("the pools could ask for 1200")
        assert found["quota of CPU"].level is FindingLevel.OK
        assert found["quota of MEMORY"].level is FindingLevel.WRONG
        assert "not one machine can start" in found["quota of MEMORY"].expected

    def test_the_cloud_s_own_limit_bounds_what_is_asked_for(self, bed: OneBed) -> None:
        bed.control.quota(OneQuota(user=ELASTIC, vm={"VMS": 10}))
        assert examined(bed, limits=Limits(nodes=10))["quota of VMS"].level is FindingLevel.OK

    def test_our_machines_are_the_pools_own(self, bed: OneBed) -> None:
        bed.control.quota(OneQuota(user=ELASTIC, vm={"VMS": 4}))
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 2))
        bed.add_foreign()
        finding = examined(bed, limits=Limits(nodes=3))["quota of VMS"]
        assert "use 1; the pools could ask for 3" in finding.observed
        assert finding.level is FindingLevel.OK

    @pytest.mark.parametrize("shape", ["one object", "a list"])
    def test_both_shapes_of_the_answer(self, shape: str) -> None:
        """pyone 6.10 has one object, 7.x a list with those of single clusters beside it."""
        whole = SimpleNamespace(VMS="8", VMS_USED="3", CPU="-1", MEMORY="-2", CLUSTER_IDS=None)
        part = SimpleNamespace(VMS="1", VMS_USED="1", CLUSTER_IDS="0")
        answer = whole if shape == "one object" else [part, whole]
        user = SimpleNamespace(VM_QUOTA=SimpleNamespace(VM=answer), DEFAULT_USER_QUOTAS=None)
        assert capacity.quotas(user) == [capacity.OneBound("VMS", 8.0, 3.0)]


class TestHosts:
    """The administrator sees them."""

    @pytest.fixture
    def bed(self, control: OneControl, tmp_path: Path) -> OneBed:
        return OneBed(control, tmp_path)

    def test_room(self, bed: OneBed) -> None:
        bed.control.hosts([OneHost(id=0, name="a", cpu=800, memory=16 << 20)])
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 1))
        bed.running(1)
        finding = examined(bed)["hosts for type small"]
        assert (finding.level, finding.observed) == (
            FindingLevel.OK,
            "room for 3 now, for 4 if nothing else were there",
        )

    def test_full_is_a_note(self, bed: OneBed) -> None:
        bed.control.hosts([OneHost(id=0, name="a", cpu=200, memory=16 << 20)])
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 1))
        bed.running(1)
        assert examined(bed)["hosts for type small"].level is FindingLevel.NOTE

    def test_none_large_enough_is_wrong(self, bed: OneBed) -> None:
        bed.control.hosts([OneHost(id=n, name=f"h{n}", cpu=100, memory=1 << 20) for n in range(9)])
        assert examined(bed)["hosts for type small"].level is FindingLevel.WRONG


def test_a_cloud_that_refuses_everything_is_findings_and_no_error(bed: OneBed) -> None:
    bed.control.fail(Fault(kind=FaultKind.AUTH))
    found = examined(bed)
    assert {f.level for f in found.values()} == {FindingLevel.WRONG}
    assert all("Authentication" in f.observed for f in found.values())
    bed.heal()


def test_several_disks_are_all_looked_at(bed: OneBed) -> None:
    made = world()
    template = vm_template(0, "worker", 2, 4096)
    template.template["DISK"] = [{"IMAGE_ID": "0"}, {"IMAGE_ID": "5"}, {"TYPE": "swap"}]
    made.templates[0] = template
    bed.control.reset(made)
    assert examined(bed)["image 5 of type small"].level is FindingLevel.WRONG


def test_a_quota_that_counts_machines_that_are_gone_is_named(bed: OneBed) -> None:
    """oned kept 18 machines in it after it was killed, and refused more."""
    bed.control.quota(OneQuota(user=ELASTIC, vm={"VMS": 20, "MEMORY": 10**6}, stale={"VMS": 18}))
    found = examined(bed)
    assert "use of quota MEMORY" not in found
    finding = found["use of quota VMS"]
    assert finding.level is FindingLevel.WRONG
    assert finding.observed == "oned counts 18 machines, the account's machines take 0"
    assert "onedb fsck" in finding.advice
    bed.control.quota(OneQuota(user=ELASTIC, vm={"VMS": 20}))
    provider = bed.open()
    provider.launch(spec_for(bed, provider, 2))
    assert "use of quota VMS" not in examined(bed)


def test_a_machine_that_stays_in_boot_is_named(bed: OneBed) -> None:
    """Its deployment was under way when oned was killed: oned refuses to end it."""
    now = [time.time()]
    settings = bed.settings()
    provider = OpenNebulaProvider(settings, Cluster(name="site", uuid=UUID), lambda: now[0])
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    number = int(machine.id.rpartition("-")[2])
    tags = bed.control.state().machines[-1].tags
    bed.control.place(Place(id=number, uid=ELASTIC, lcm=2, template=0, host=0, user_template=tags))
    assert f"machine {number}" not in {f.subject for f in provider.examine([bed.pool])}
    now[0] += 1000
    finding = {f.subject: f for f in provider.examine([bed.pool])}[f"machine {number}"]
    assert finding.level is FindingLevel.WRONG
    assert finding.observed.startswith("in BOOT for 16m")
    assert f"onevm recover --failure {number}" in finding.advice
