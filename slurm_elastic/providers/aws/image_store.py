"""AMIs of raw disks: to S3, imported as a snapshot, registered, and tagged last of all.

Each step is found again by whoever begins anew: a task and a snapshot by the file's digest in
their tags, an image by its snapshot. So nothing is imported twice, and an image that lacks its
tags, which no pool takes by requirements, gets them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import CloudImage, ImageFile
from slurm_elastic.model.cluster import Pool
from slurm_elastic.providers.aws import imports
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.convert import tags
from slurm_elastic.providers.aws.images import OS, SOFTWARE, VERSION, Images, candidate
from slurm_elastic.providers.aws.requests import tag_list
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.image_marks import DIGEST, image_marks

ROOT = "/dev/xvda"
_FRESH = 600.0
"""Seconds for a registered image to be available, of a snapshot that is there."""
_UNKNOWN = "InvalidAMIID.NotFound"
_DUPLICATE = "InvalidAMIName.Duplicate"
_GIB = 1 << 30


class AmiImages:
    """One account's in a region; see protocols.ImageStore."""

    forms: tuple[str, ...] = ("raw",)
    places: tuple[str, ...] = ("",)

    def __init__(self, settings: AwsCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._api = Api(settings, None)
        self._snapshots = imports.Snapshots(self._api, settings, cluster)
        self._found = Images(self._api, settings, time.monotonic)

    def images(self) -> Sequence[CloudImage]:
        """The account's own: of others' it is shown no tags."""
        return [_image(one) for one in self._mine()]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """Three, unless earlier ones have been made."""
        place = self._snapshots.object_of(file)
        return (
            f"send {file.size >> 20} MiB to S3, as {place}",
            "have EC2 import that as a snapshot, and delete it from S3",
            f"register the snapshot as {file.name}, boot mode legacy-bios, and tag it",
        )

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:  # noqa: ARG002
        """Each step once, whoever began it."""
        snapshot = self._snapshots.of(file)
        # Before the import: only after it EC2 would say that another image has the name.
        number = self._registered(file, snapshot)
        if snapshot is None:
            snapshot = self._snapshots.imported(file, say)
        else:
            say(f"snapshot {snapshot} of it is there from an earlier upload")
            self._snapshots.delete(file, say)
        if number is None:
            number = self._register(file, snapshot)
            say(f"image {number} registered of {snapshot}")
        self._await(number)
        marks = image_marks(file, self._cluster)
        marks |= {OS: file.os, VERSION: file.version, SOFTWARE: " ".join(file.software)}
        request = {"Resources": [number], "Tags": tag_list(marks)}
        self._api.send("create_tags", request)
        return _image(self._described(number))

    def remove(self, image: CloudImage) -> None:
        """The image alone; its snapshot serves the next upload."""
        self._api.send("deregister_image", {"ImageId": image.id})

    def start_of(self, pool: Pool) -> str:
        """As machines are started."""
        return self._found.of(pool)

    def _registered(self, file: ImageFile, snapshot: str | None) -> str | None:
        """Our image whose disk the snapshot is. ProviderError where another one has the name."""
        # Filtered here: not all that is like EC2 knows such filters.
        mine = self._mine()
        for one in mine:
            disks = (part.get("Ebs", {}) for part in one.get("BlockDeviceMappings", ()))
            if snapshot and any(disk.get("SnapshotId") == snapshot for disk in disks):
                return str(one["ImageId"])
        for one in mine:
            if one.get("Name") == file.name:
                text = f"{one['ImageId']} has the name {file.name}: name yours by --name"
                raise ProviderError(self._settings.name, "NameTaken", text)
        return None

    def _mine(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self._api.send(
            "describe_images", {"Owners": ["self"]}
        )["Images"]
        return found

    def _register(self, file: ImageFile, snapshot: str) -> str:
        """The number of the image, made now or by an order whose answer was lost."""
        try:
            answer = self._api.send("register_image", _registration(file, snapshot))
        except ProviderError as error:
            # RegisterImage knows no client token: the order may have been carried out before.
            mine = error.code == _DUPLICATE and self._registered(file, snapshot)
            if not mine:
                raise
            return mine
        return str(answer["ImageId"])

    def _await(self, number: str) -> None:
        """EC2 may not know yet, for a moment, what it has just made."""
        until = time.monotonic() + _FRESH
        while (state := self._described(number).get("State")) in (None, "pending"):
            if time.monotonic() > until:
                break
            time.sleep(imports.PERIOD)
        if state != "available":
            text = f"image {number} is {state}, expected available"
            raise ProviderError(self._settings.name, "BadImage", text)

    def _described(self, number: str) -> Mapping[str, Any]:
        try:
            found = self._api.send("describe_images", {"ImageIds": [number]})["Images"]
        except ProviderError as error:
            if error.code != _UNKNOWN:
                raise
            return {}
        return dict(found[0]) if found else {}


def _registration(file: ImageFile, snapshot: str) -> dict[str, object]:
    disk = {"SnapshotId": snapshot, "VolumeType": "gp3", "DeleteOnTermination": True}
    return {
        "Name": file.name,
        "Description": f"{file.os} {file.version} with {' '.join(file.software)}",
        "Architecture": "x86_64",
        "BootMode": "legacy-bios",
        "VirtualizationType": "hvm",
        "EnaSupport": True,
        "RootDeviceName": ROOT,
        "BlockDeviceMappings": [{"DeviceName": ROOT, "Ebs": disk}],
    }


def _image(record: Mapping[str, Any]) -> CloudImage:
    """One without any tag may be of an upload that was broken off, which goes on with it."""
    one, told = candidate(record), tags(record)
    disks = (part.get("Ebs", {}) for part in record.get("BlockDeviceMappings", ()))
    size = sum(int(disk.get("VolumeSize") or 0) for disk in disks)
    state = str(record.get("State") or "")
    return CloudImage(
        id=one.id, name=one.name, os=one.os, version=one.version, software=one.software,
        created=one.created, size=size * _GIB or None, digest=told.get(DIGEST, ""),
        unfinished="" if state == "available" else f"it is {state}", own=bool(told),
    )  # fmt: skip
