"""Pools that name their images: one pool's answer is not another's."""

from __future__ import annotations

from typing import Any

from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.openstack.catalog import Catalog
from slurm_elastic.providers.openstack.settings import Flavor, OpenStackCloud


def test_a_pool_that_names_an_image_does_not_get_the_image_of_its_cloud() -> None:
    def call(_service: str, _method: str, path: str, _body: object = None) -> dict[str, Any]:
        name = path.split("name=")[1].split("&")[0]
        return {"images": [{"id": f"id-of-{name}"}]}

    cloud = OpenStackCloud(
        name="os", location=Location.ON_PREMISES, cloud="c", image="worker",
        types={"a": Flavor(cpus=1, memory=100)},
    )  # fmt: skip
    catalog = Catalog(cloud, call)
    assert catalog.image() == "id-of-worker"
    assert catalog.image(ImageChoice(id="gpu")) == "id-of-gpu"
    assert catalog.image() == "id-of-worker"
