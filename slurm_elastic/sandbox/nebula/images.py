"""Images that the emulated front end reads from files, as oned's datastore drivers do.

``one.image.allocate`` answers at once. The image is LOCKED while its file is copied, and in ERROR
if the file cannot be read. Its size is the size of the disk in MiB, rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slurm_elastic.sandbox.nebula.cloud import OneRefusal, format_date
from slurm_elastic.sandbox.nebula.world import EmulatedImage, OneUser, OneWorld

LOCKED, READY, ERROR = 4, 1, 5
_OWN_ATTRIBUTES = frozenset({"NAME", "TYPE", "PERSISTENT", "PATH"})
_TYPES = {"OS": 0, "CDROM": 1, "DATABLOCK": 2}


def allocate(
    world: OneWorld, user: OneUser, attributes: Mapping[str, str], store: int, now: float
) -> int:
    """Make an image and begin to read its file. Returns its id. Raises OneRefusal."""
    if store not in world.datastores:
        raise OneRefusal(0x0400, f"Error getting datastore [{store}].", store)
    name, path = attributes.get("NAME", ""), attributes.get("PATH", "")
    if not path:
        raise OneRefusal(0x4000, "Error allocating a new image. No PATH in template.")
    for image in world.images:
        if (image.name, image.uid) == (name, user.id):
            text = f"Error allocating a new image. NAME is already taken by IMAGE {image.id}."
            raise OneRefusal(0x4000, text)
    new_image = EmulatedImage(
        id=max((image.id for image in world.images), default=-1) + 1, name=name, uid=user.id,
        everybody=False, type=_TYPES.get(attributes.get("TYPE", "OS"), 0), state=LOCKED,
        persistent=attributes.get("PERSISTENT") == "YES", created=int(now), size=0, path=path,
        due=now + world.pace.boot,
        template={k: v for k, v in attributes.items() if k not in _OWN_ATTRIBUTES},
    )  # fmt: skip
    world.images.append(new_image)
    return new_image.id


def advance(world: OneWorld, now: float) -> None:
    """Finish the images whose files have been read until ``now``."""
    for image in world.images:
        if image.state == LOCKED and 0 < image.due <= now:
            _read(image, now)


def _read(image: EmulatedImage, now: float) -> None:
    try:
        head = Path(image.path).read_bytes()
    except OSError:
        image.state = ERROR
        text = f"Error copying image in the datastore: Not allowed to copy image file {image.path}"
        image.template["ERROR"] = f"{format_date(now)} : {text}"
        return
    qcow2 = head.startswith(b"QFI\xfb")
    size = int.from_bytes(head[24:32], "big") if qcow2 else len(head)
    image.size, image.state = -(-size >> 20), READY
