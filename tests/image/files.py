"""Small files that pass for images, with the labels that ``image build`` writes."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.image.label import Label, label_file, write

BUILT = 1793491200.0


def image_at(path: Path, content: bytes = b"an image's bytes" * 4096, **more: object) -> Path:
    """The file, of the form that its name says."""
    path.write_bytes(content)
    values: dict[str, object] = {
        "name": "slurm-24.11.5-debian-13.1-20261101",
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
