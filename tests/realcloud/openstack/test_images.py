"""Images in a real glance: uploaded by the command, found by a pool's requirements, booted by nova."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from image.files import empty_qcow2, image_at

from slurm_elastic.cli.main import main
from slurm_elastic.config.configfile import load
from slurm_elastic.config.grants import use_of
from slurm_elastic.hostlist import expand
from slurm_elastic.model import LaunchSpec
from slurm_elastic.providers import open_images, open_provider

from .bed import CPUS, MEMORY, PlaneBed

pytestmark = pytest.mark.timeout(3600)  # the first time packages are installed


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
        "who": {"accounts": ["physics"]}, "limits": {"nodes": 4},
        "clouds": [cloud], "pools": [pool, pool | {"name": "old", "nodes": "old1", "image": None}],
    }  # fmt: skip
    del document["pools"][1]["image"]
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(json.dumps(document))
    return path


def test_an_image_goes_up_once_is_found_and_a_machine_starts_from_it(
    bed: PlaneBed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = image_at(tmp_path / "a.qcow2", empty_qcow2()), configured(bed, tmp_path)

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


def test_who_may_make_no_images_is_told_in_glances_words(
    bed: PlaneBed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.login(password="not-the-password")
    path, config = image_at(tmp_path / "a.qcow2", empty_qcow2()), configured(bed, tmp_path)
    assert main(["--config", str(config), "image", "upload", "stack", str(path)]) == 1
    assert "requires authentication" in capsys.readouterr().err
