"""Images imported into a real engine, and containers of them."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker.errors
import pytest
from docker_proxy import Fault, running_proxy
from image.files import image_at

from slurm_elastic.base.errors import ConfigError, ProviderError, SlurmElasticError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.model.image_store import ImageStore
from slurm_elastic.providers import open_images
from slurm_elastic.testing.contract import UUID, spec_for

from .bed import HOST, DockerBed
from .engine import Engine


class Shelf(DockerBed):
    """An engine, and a name for images that nobody else has there."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)
        self.name = f"upload-{secrets.token_hex(4)}"

    def close(self) -> None:
        for container in self.containers():
            container.remove(force=True, v=True)
        for name in (self.name, f"{self.name}:2"):
            try:
                self.client.images.remove(name, force=True)
            except docker.errors.ImageNotFound:
                continue
        super().close()

    def store(self) -> ImageStore:
        return open_images(self.settings(api_timeout=30.0), Cluster(name="site", uuid=UUID))

    def sent(self, path: Path, said: list[str] | None = None, name: str = "") -> list[str]:
        said = [] if said is None else said
        upload(self.store(), image_file(path, name or self.name, None), said.append)
        return said


@pytest.fixture
def bed(docker_engine: Engine, tmp_path: Path) -> Iterator[Shelf]:
    with running_proxy(tmp_path / "engine.sock", docker_engine.socket) as proxy:
        made = Shelf(docker_engine, proxy, "unused")
        yield made
        made.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A tar file with sleep and the libraries that it needs; of this test alone."""
    program = shutil.which("sleep")
    assert program is not None
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    own = tmp_path / "own"
    own.write_text(secrets.token_hex())
    target = tmp_path / "a.tar"
    with tarfile.open(target, "w", dereference=True) as tar:
        tar.add(program, "/bin/sleep")
        tar.add(own, "/etc/own")
        for library in re.findall(r"(/\S+) \(0x", told):
            tar.add(library, library)
    return image_at(target, target.read_bytes())


def test_a_machine_starts_from_what_was_imported_and_nothing_is_sent_twice(
    bed: Shelf, path: Path
) -> None:
    said = bed.sent(path)
    assert f"'image: {bed.name}'" in said[-2]
    assert bed.sent(path) == [f"{HOST}: there already: {bed.name} ({bed.name}:latest)"]
    assert bed.proxy.count("POST .*/images/create") == 1
    (one,) = [i for i in bed.store().images() if i.name == bed.name]
    assert (one.os, one.version, one.place) == ("debian", "13.1", HOST)
    assert "slurm-24.11.5" in one.software
    bed.image = bed.name
    assert bed.store().start_of(bed.pool) == one.id
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    assert bed.alive() == {machine.id}


@pytest.mark.release
def test_whatever_else_runs_of_the_image_is_no_machine_of_ours(bed: Shelf, path: Path) -> None:
    """A container inherits the labels of its image."""
    bed.sent(path)
    bed.image = bed.name
    (theirs,) = bed.add_foreign()
    provider = bed.open()
    assert not provider.instances()
    provider.terminate([theirs])
    assert bed.alive() == {theirs}
    labels = bed.client.containers.get(theirs).labels
    assert labels["slurm-elastic.image.cluster"] == UUID


@pytest.mark.release
@pytest.mark.parametrize("after", [False, True])
def test_a_connection_that_is_lost_leaves_all_or_nothing(
    bed: Shelf, path: Path, after: bool
) -> None:
    bed.proxy.fail(Fault(drop=True, after=after, match="POST .*/images/create"))
    with pytest.raises(TransientError):
        bed.sent(path)
    bed.heal()
    there = [i for i in bed.store().images() if i.name == bed.name]
    assert len(there) == (1 if after else 0)
    bed.sent(path)
    assert len([i for i in bed.store().images() if i.name == bed.name]) == 1


@pytest.mark.release
def test_what_an_engine_writes_after_its_answer_began_is_an_error(bed: Shelf, path: Path) -> None:
    body = b'{"status":"Importing"}\r\n{"errorDetail":{"message":"no"},"error":"no space left"}\r\n'
    bed.proxy.fail(Fault(status=200, body=body, match="POST .*/images/create"))
    with pytest.raises(ProviderError, match=f"{HOST}: no space left"):
        bed.sent(path)


def test_a_file_that_is_no_tar_is_refused_by_the_engine(bed: Shelf, tmp_path: Path) -> None:
    with pytest.raises((ProviderError, TransientError)):
        bed.sent(image_at(tmp_path / "b.tar", b"no tar at all" * 100))
    assert [i for i in bed.store().images() if i.name == bed.name] == []


@pytest.mark.release
def test_names_and_forms(bed: Shelf, path: Path, tmp_path: Path) -> None:
    bed.sent(path)
    with pytest.raises(SlurmElasticError, match="another image called"):
        bed.sent(image_at(tmp_path / "b.tar", path.read_bytes() + bytes(512)))
    bed.sent(tmp_path / "b.tar", name=f"{bed.name}:2")
    assert {f"{bed.name}:2", bed.name} <= {i.name for i in bed.store().images()}
    with pytest.raises(ConfigError, match="--name: found 'Node', expected small letters"):
        bed.sent(tmp_path / "b.tar", name="Node")
    with pytest.raises(ConfigError, match="found qcow2, expected tar"):
        bed.sent(image_at(tmp_path / "c.qcow2"))
