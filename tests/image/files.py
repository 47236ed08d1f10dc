"""Small files that pass for images, with the labels that ``image build`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from slurm_elastic.config import Cluster
from slurm_elastic.image.label import Label, label_file, write
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.image_store import ImageStore
from slurm_elastic.providers import open_images
from slurm_elastic.testing.contract import UUID

BUILT = 1793491200.0
NAME = "slurm-24.11.5-debian-13.1-20261101"
POOL_IMAGE = ImageChoice(os="debian", version="13", software=("slurm-24.11",))
"""The requirements of a pool that it fulfils."""


class ConfiguredBed(Protocol):
    """A bed of any cloud that keeps images."""

    def settings(self, **more: Any) -> Any: ...


def image_at(path: Path, content: bytes = b"an image's bytes" * 4096, **more: object) -> Path:
    """The file, of the form that its name says."""
    path.write_bytes(content)
    values: dict[str, object] = {
        "name": NAME,
        "file": path.name,
        "kind": path.suffix.removeprefix("."),
        "os": "debian",
        "version": "13.1",
        "codename": "trixie",
        "software": "slurm-24.11.5 criu-4.1",
        "built": BUILT,
    }
    write(label_file(path), Label(**(values | more)))
    return path


def empty_qcow2() -> bytes:
    """A disk of 1 MiB: version 3, clusters of 64 KiB, one table of each kind."""
    head = b"QFI\xfb" + (3).to_bytes(4, "big") + bytes(12) + (16).to_bytes(4, "big")
    head += (1 << 20).to_bytes(8, "big") + bytes(4) + (1).to_bytes(4, "big")
    head += (3 << 16).to_bytes(8, "big") + (1 << 16).to_bytes(8, "big") + (1).to_bytes(4, "big")
    head += bytes(4 + 8 + 24) + (4).to_bytes(4, "big") + (104).to_bytes(4, "big")
    return head.ljust(4 << 16, b"\0")


def qcow2_at(tmp_path: Path) -> Path:
    """The image of most tests."""
    return image_at(tmp_path / "a.qcow2", empty_qcow2())


def opened(bed: ConfiguredBed, **more: object) -> ImageStore:
    """The images of the bed's cloud."""
    settings = bed.settings(**({"api_timeout": 20.0} | more))
    return open_images(settings, Cluster(name="site", uuid=UUID))


def sent(
    bed: ConfiguredBed,
    path: Path,
    said: list[str] | None = None,
    seen_as: str | None = None,
    **more: bool,
) -> list[str]:
    """Upload the file; what was said of it, also in ``said`` where the upload fails."""
    said = [] if said is None else said
    upload(opened(bed), image_file(path, None, seen_as), said.append, **more)
    return said
