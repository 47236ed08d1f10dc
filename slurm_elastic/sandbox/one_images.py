"""Images that the emulated front end reads by itself, as oned's datastore drivers do.

``one.image.allocate`` answers at once; the image is LOCKED while its file is copied, and in ERROR
where that cannot be read. oned's sizes are those of the disk, in MiB, rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slurm_elastic.sandbox.one_cloud import Refusal, dated
from slurm_elastic.sandbox.one_world import EmulatedImage, User, World

LOCKED, READY, ERROR = 4, 1, 5
_KNOWN = frozenset({"NAME", "TYPE", "PERSISTENT", "PATH"})
_TYPES = {"OS": 0, "CDROM": 1, "DATABLOCK": 2}


def allocate(world: World, user: User, asked: Mapping[str, str], store: int, now: float) -> int:
    """The number of a new image, which the front end begins to read."""
    if store not in world.datastores:
        raise Refusal(0x0400, f"Error getting datastore [{store}].", store)
    name, path = asked.get("NAME", ""), asked.get("PATH", "")
    if not path:
        raise Refusal(0x4000, "Error allocating a new image. No PATH in template.")
    for one in world.images:
        if (one.name, one.uid) == (name, user.id):
            text = f"Error allocating a new image. NAME is already taken by IMAGE {one.id}."
            raise Refusal(0x4000, text)
    made = EmulatedImage(
        id=max((one.id for one in world.images), default=-1) + 1, name=name, uid=user.id,
        everybody=False, type=_TYPES.get(asked.get("TYPE", "OS"), 0), state=LOCKED,
        persistent=asked.get("PERSISTENT") == "YES", created=int(now), size=0, path=path,
        due=now + world.pace.boot, template={k: v for k, v in asked.items() if k not in _KNOWN},
    )  # fmt: skip
    world.images.append(made)
    return made.id


def advance(world: World, now: float) -> None:
    """Images whose file has been read by now, or could not be."""
    for one in world.images:
        if one.state == LOCKED and 0 < one.due <= now:
            _read(one, now)


def _read(one: EmulatedImage, now: float) -> None:
    try:
        head = Path(one.path).read_bytes()
    except OSError:
        one.state = ERROR
        text = f"Error copying image in the datastore: Not allowed to copy image file {one.path}"
        one.template["ERROR"] = f"{dated(now)} : {text}"
        return
    qcow2 = head.startswith(b"QFI\xfb")
    size = int.from_bytes(head[24:32], "big") if qcow2 else len(head)
    one.size, one.state = -(-size >> 20), READY
