"""AMIs from raw disk images: sent to S3, imported as a snapshot, registered, and tagged last.

A later upload finds the results of each step: a task and a snapshot by the file's digest in their
tags, an image by its snapshot. So nothing is imported twice. An image without tags, which no pool
takes by requirements, gets its tags then.
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
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.convert import tags
from slurm_elastic.providers.aws.images import OS, SOFTWARE, VERSION, AwsImages, candidate
from slurm_elastic.providers.aws.requests import tag_list
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.image_marks import DIGEST, image_marks

ROOT = "/dev/xvda"
_AVAILABLE_WITHIN_S = 600.0
"""A registered image may take this long to become available, although its snapshot exists."""
_UNKNOWN = "InvalidAMIID.NotFound"
_DUPLICATE = "InvalidAMIName.Duplicate"
_GIB = 1 << 30


class AmiImages:
    """The images of one account in a region. See image_store.ImageStore."""

    forms: tuple[str, ...] = ("raw",)
    places: tuple[str, ...] = ("",)

    def __init__(self, settings: AwsCloud, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._api = AwsApi(settings, None)
        self._snapshots = imports.Snapshots(self._api, settings, cluster)
        self._images = AwsImages(self._api, settings, time.monotonic)

    def images(self) -> Sequence[CloudImage]:
        """The account's own images. EC2 shows no tags of other accounts' images."""
        return [_image(record) for record in self._own_images()]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """The three steps of an upload. Steps that were done earlier are skipped later."""
        place = self._snapshots.object_of(file)
        return (
            f"send {file.size >> 20} MiB to S3, as {place}",
            "have EC2 import that as a snapshot, and delete it from S3",
            f"register the snapshot as {file.name}, boot mode legacy-bios, and tag it",
        )

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:  # noqa: ARG002
        """Run each step that no earlier upload has finished."""
        snapshot = self._snapshots.of(file)
        # Before the import, which takes long: EC2 would only report after it that another image has
        # the name.
        image_id = self._registered(file, snapshot)
        if snapshot is None:
            snapshot = self._snapshots.imported(file, say)
        else:
            say(f"snapshot {snapshot} of it is there from an earlier upload")
            self._snapshots.delete(file, say)
        if image_id is None:
            image_id = self._register(file, snapshot)
            say(f"image {image_id} registered of {snapshot}")
        self._wait_until_available(image_id)
        image_tags = image_marks(file, self._cluster)
        image_tags |= {OS: file.os, VERSION: file.version, SOFTWARE: " ".join(file.software)}
        request = {"Resources": [image_id], "Tags": tag_list(image_tags)}
        # Last, because pools find an image by its tags: an unfinished one must have none.
        self._api.send("create_tags", request)
        return _image(self._describe(image_id))

    def remove(self, image: CloudImage) -> None:
        """Remove only the image. Its snapshot serves the next upload."""
        self._api.send("deregister_image", {"ImageId": image.id})

    def start_of(self, pool: Pool) -> str:
        """The image that machines of the pool start from."""
        return self._images.of(pool)

    def _registered(self, file: ImageFile, snapshot: str | None) -> str | None:
        """Our image whose disk is the snapshot, or None. ProviderError if another image has the
        name.
        """
        # Filtered here and not by EC2, because services that imitate EC2 may lack these filters.
        own_images = self._own_images()
        for image in own_images:
            disks = (mapping.get("Ebs", {}) for mapping in image.get("BlockDeviceMappings", ()))
            if snapshot and any(disk.get("SnapshotId") == snapshot for disk in disks):
                return str(image["ImageId"])
        for image in own_images:
            if image.get("Name") == file.name:
                text = f"{image['ImageId']} has the name {file.name}: name yours by --name"
                raise ProviderError(self._settings.name, "NameTaken", text)
        return None

    def _own_images(self) -> Sequence[Mapping[str, Any]]:
        records: Sequence[Mapping[str, Any]] = self._api.send(
            "describe_images", {"Owners": ["self"]}
        )["Images"]
        return records

    def _register(self, file: ImageFile, snapshot: str) -> str:
        """Register the image and return its id. If the answer to an earlier order was lost, return
        the id of its image.
        """
        try:
            answer = self._api.send("register_image", _registration(file, snapshot))
        except ProviderError as error:
            # RegisterImage has no client token, so an earlier order may have been carried out.
            earlier_id = error.code == _DUPLICATE and self._registered(file, snapshot)
            if not earlier_id:
                raise
            return earlier_id
        return str(answer["ImageId"])

    def _wait_until_available(self, image_id: str) -> None:
        """Wait until the image is available. EC2 may not know a new image for a moment."""
        give_up_at = time.monotonic() + _AVAILABLE_WITHIN_S
        while (state := self._describe(image_id).get("State")) in (None, "pending"):
            if time.monotonic() > give_up_at:
                break
            time.sleep(imports.POLL_EVERY_S)
        if state != "available":
            text = f"image {image_id} is {state}, expected available"
            raise ProviderError(self._settings.name, "BadImage", text)

    def _describe(self, image_id: str) -> Mapping[str, Any]:
        try:
            records = self._api.send("describe_images", {"ImageIds": [image_id]})["Images"]
        except ProviderError as error:
            if error.code != _UNKNOWN:
                raise
            return {}
        return dict(records[0]) if records else {}


def _registration(file: ImageFile, snapshot: str) -> dict[str, object]:
    disk = {"SnapshotId": snapshot, "VolumeType": "gp3", "DeleteOnTermination": True}
    return {
        "Name": file.name,
        "Description": f"{file.os} {file.version} with {' '.join(file.software)}",
        "Architecture": "x86_64",
        # The disks that ``image build`` makes have a boot sector and no EFI partition.
        "BootMode": "legacy-bios",
        "VirtualizationType": "hvm",
        "EnaSupport": True,
        "RootDeviceName": ROOT,
        "BlockDeviceMappings": [{"DeviceName": ROOT, "Ebs": disk}],
    }


def _image(record: Mapping[str, Any]) -> CloudImage:
    """The record as an image. An image without any tag may be from an upload that was interrupted;
    the next upload finishes it.
    """
    image, image_tags = candidate(record), tags(record)
    disks = (mapping.get("Ebs", {}) for mapping in record.get("BlockDeviceMappings", ()))
    size = sum(int(disk.get("VolumeSize") or 0) for disk in disks)
    state = str(record.get("State") or "")
    return CloudImage(
        id=image.id, name=image.name, os=image.os, version=image.version, software=image.software,
        created=image.created, size=size * _GIB or None, digest=image_tags.get(DIGEST, ""),
        unfinished="" if state == "available" else f"it is {state}", own=bool(image_tags),
    )  # fmt: skip
