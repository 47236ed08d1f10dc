"""Which image an OpenNebula pool's machines start from, and how oned is told."""

from __future__ import annotations

import xmlrpc.client
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from providers.opennebula.bed import INSTANTIATE, OneBed, world

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Instance
from slurm_elastic.providers.opennebula.provider import OpenNebulaProvider
from slurm_elastic.providers.opennebula.requests import disks
from slurm_elastic.sandbox.nebula.world import EmulatedImage, OneUser
from slurm_elastic.testing.contract import spec_for

pytestmark = pytest.mark.usefixtures("guarded")

ELASTIC, STRANGER = 2, 3
OF_DEBIAN = {"SLURM_ELASTIC_OS": "debian", "SLURM_ELASTIC_VERSION": "12.5"}


def stocked(bed: OneBed, *images: EmulatedImage) -> None:
    made = world()
    made.images += images
    made.users.append(OneUser(id=STRANGER, name="stranger", password="x"))
    bed.control.reset(made)


def launched(
    bed: OneBed, choice: ImageChoice, provider: OpenNebulaProvider | None = None, **more: object
) -> Instance:
    provider = provider or bed.open(**more)
    pool = replace(bed.pool, image=choice)
    (machine,) = provider.launch(replace(spec_for(bed, provider, 1), pool=pool))
    return machine


def disk(bed: OneBed, machine: Instance) -> tuple[str, str]:
    """Number and name of the image that oned gave it."""
    with xmlrpc.client.ServerProxy(bed.control.endpoint) as server:
        number = int(machine.id.rpartition("-")[2])
        answer = server.one.vm.info(bed.auth.read_text().strip(), number)
    found = ElementTree.fromstring(answer[1]).find("TEMPLATE/DISK")
    assert found is not None
    return found.findtext("IMAGE_ID", ""), found.findtext("IMAGE", "")


def test_without_a_choice_the_template_has_it(bed: OneBed) -> None:
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    assert disk(bed, machine) == ("0", "debian12")
    assert bed.calls("one.imagepool.info") == 0


def test_by_its_number_nothing_is_looked_up(bed: OneBed) -> None:
    stocked(bed, EmulatedImage(id=7, name="other"))
    assert disk(bed, launched(bed, ImageChoice(id="7"))) == ("7", "other")
    assert bed.calls("one.imagepool.info") == 0


def test_by_its_name(bed: OneBed) -> None:
    stocked(bed, EmulatedImage(id=7, name="slurm-node"), EmulatedImage(id=9, name="slurm-node-old"))
    assert disk(bed, launched(bed, ImageChoice(name="slurm-node"))) == ("7", "slurm-node")


def test_the_newest_whose_name_fits(bed: OneBed) -> None:
    stocked(
        bed,
        EmulatedImage(id=7, name="slurm-1", created=100),
        EmulatedImage(id=8, name="slurm-3", created=300),
        EmulatedImage(id=9, name="slurm-2", created=200),
    )
    assert disk(bed, launched(bed, ImageChoice(name="slurm-*")))[0] == "8"


def test_by_what_its_maker_says_that_it_has(bed: OneBed) -> None:
    stocked(
        bed,
        EmulatedImage(id=7, name="a", created=100, template=OF_DEBIAN | {"LABELS": "slurm-24.11,gpu"}),
        EmulatedImage(id=8, name="b", created=300, template=OF_DEBIAN),
        EmulatedImage(id=9, name="c", created=200,
              template=OF_DEBIAN | {"SLURM_ELASTIC_SOFTWARE": "slurm-24.11.5 cuda-12.4"}),
    )  # fmt: skip
    choice = ImageChoice(os="debian", version="12", software=("slurm-24.11",))
    assert disk(bed, launched(bed, choice))[0] == "9"


def test_a_name_that_two_owners_have_is_refused_with_both(bed: OneBed) -> None:
    stocked(bed, EmulatedImage(id=7, name="node"), EmulatedImage(id=9, name="node", uid=ELASTIC))
    with pytest.raises(ProviderError) as caught:
        launched(bed, ImageChoice(name="node"))
    assert (caught.value.code, caught.value.message) == (
        "AmbiguousImage",
        "2 images are called node: 7 (node of oneadmin), 9 (node of elastic); name one by its id",
    )
    assert bed.calls(INSTANTIATE) == 0


def test_where_none_fits_the_nearest_is_named(bed: OneBed) -> None:
    stocked(bed, EmulatedImage(id=7, name="node", template=OF_DEBIAN))
    with pytest.raises(ProviderError) as caught:
        launched(bed, ImageChoice(os="debian", version="13"))
    assert caught.value.code == "NoImage"
    assert caught.value.message == (
        "no image has os debian, version 13; looked at 2, the nearest is node (7), "
        "without version 13"
    )


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (EmulatedImage(id=7, name="node", state=3), "7 (node of oneadmin) is in state DISABLED"),
        (EmulatedImage(id=7, name="node", type=2), "7 (node of oneadmin) is not of type OS"),
        (EmulatedImage(id=7, name="node", persistent=True), "7 (node of oneadmin) is persistent"),
        (
            EmulatedImage(id=7, name="node", uid=STRANGER),
            "7 (node of stranger) is of an owner not in",
        ),
    ],
)
def test_an_image_that_cannot_serve_does_not_count_and_the_reason_is_said(
    bed: OneBed, image: EmulatedImage, why: str
) -> None:
    stocked(bed, image)
    with pytest.raises(ProviderError, match="no image has the name node") as caught:
        launched(bed, ImageChoice(name="node"))
    assert why in caught.value.message


def test_images_of_others_count_where_the_settings_trust_them(bed: OneBed) -> None:
    stocked(bed, EmulatedImage(id=7, name="node", uid=STRANGER))
    machine = launched(bed, ImageChoice(name="node"), image_owners=("stranger",))
    assert disk(bed, machine)[0] == "7"


def test_an_answer_serves_for_a_while(bed: OneBed) -> None:
    stocked(bed, EmulatedImage(id=7, name="node"))
    provider = bed.open()
    choice = ImageChoice(name="node")
    launched(bed, choice, provider)
    pool = replace(bed.pool, image=choice)
    provider.launch(replace(spec_for(bed, provider, 1, generation="g2"), pool=pool))
    assert bed.calls("one.imagepool.info") == 1


def test_a_refused_launch_looks_anew(bed: OneBed) -> None:
    """The image was replaced by another of its name."""
    stocked(bed, EmulatedImage(id=7, name="node"))
    provider = bed.open()
    launched(bed, ImageChoice(name="node"), provider)
    stocked(bed, EmulatedImage(id=8, name="node"))
    pool = replace(bed.pool, image=ImageChoice(name="node"))
    spec = replace(spec_for(bed, provider, 1, generation="g2"), pool=pool)
    with pytest.raises(ProviderError, match="Image with ID: 7 does not exist"):
        provider.launch(spec)
    (machine,) = provider.launch(spec)
    assert disk(bed, machine)[0] == "8"


def test_an_image_that_the_account_may_not_use(bed: OneBed) -> None:
    stocked(bed, EmulatedImage(id=7, name="node", everybody=False))
    """oned 6.10.5 does not ask for the right at instantiate; ``doctor`` does, by one.image.info."""
    machine = launched(bed, ImageChoice(id="7"))
    assert disk(bed, machine)[0] == "7"


class TestDisks:
    def test_one_disk(self) -> None:
        own = {"DISK": {"IMAGE": "old", "IMAGE_UNAME": "oneadmin", "SIZE": "9"}}
        assert disks(own, 7) == [{"IMAGE_ID": "7", "SIZE": "9"}]

    def test_the_first_of_several_that_has_an_image(self) -> None:
        own = {"DISK": [{"TYPE": "swap", "SIZE": "1"}, {"IMAGE_ID": "0"}, {"IMAGE_ID": "1"}]}
        assert disks(own, 7) == [
            {"TYPE": "swap", "SIZE": "1"},
            {"IMAGE_ID": "7"},
            {"IMAGE_ID": "1"},
        ]

    def test_a_template_without_one(self) -> None:
        assert disks({}, 7) == [{"IMAGE_ID": "7"}]
        assert disks({"DISK": {"TYPE": "swap"}}, 7) == [{"IMAGE_ID": "7"}, {"TYPE": "swap"}]
