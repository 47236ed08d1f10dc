"""AMIs of raw disks: to S3, imported as a snapshot, registered, and tagged last of all.

Each step is found again by whoever begins anew: a task and a snapshot by the file's digest in
their tags, an image by its snapshot. So nothing is imported twice, and an image that lacks its
tags, which no pool takes by requirements, gets them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import boto3
from botocore.config import Config

from slurm_elastic.config import Cluster
from slurm_elastic.errors import ConfigError, ProviderError
from slurm_elastic.model import CloudImage, ImageFile, Pool
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.convert import tags
from slurm_elastic.providers.aws.errors import translated
from slurm_elastic.providers.aws.images import OS, SOFTWARE, VERSION, Images, candidate
from slurm_elastic.providers.aws.requests import tag_list
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.image_marks import DIGEST, image_marks

ROOT = "/dev/xvda"
FOLDER = "slurm-elastic/"
"""In the bucket: all that is ours there."""
PERIOD = 5.0
_PATIENCE = 6 * 3600.0
"""Seconds for an import; EC2 takes minutes."""
_ACTIVE, _DONE = "active", "completed"
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
        self._found = Images(self._api, settings, time.monotonic)

    def images(self) -> Sequence[CloudImage]:
        """Of the owners whose images pools may look for."""
        request = {"Owners": list(self._settings.image_owners)}
        return [_image(one) for one in self._api.send("describe_images", request)["Images"]]

    def steps(self, file: ImageFile) -> Sequence[str]:
        """Three, unless earlier ones have been made."""
        place = f"{self._bucket()}/{_key(file)}"
        return (
            f"send {file.size >> 20} MiB to S3, as {place}",
            "have EC2 import that as a snapshot, and delete it from S3",
            f"register the snapshot as {file.name}, boot mode legacy-bios, and tag it",
        )

    def upload(self, file: ImageFile, place: str, say: Callable[[str], None]) -> CloudImage:  # noqa: ARG002
        """Each step once, whoever began it."""
        snapshot = self._snapshot(file)
        number = self._registered(file, snapshot)
        if snapshot is None:
            snapshot = self._imported(file, say)
        else:
            say(f"snapshot {snapshot} of it is there from an earlier upload")
            self._delete(file, say)
        if number is None:
            number = self._register(file, snapshot)
            say(f"image {number} registered of {snapshot}")
        self._await(number)
        self._tag(number, self._tags(file))
        return _image(self._described(number))

    def remove(self, image: CloudImage) -> None:
        """The image alone; its snapshot serves the next upload."""
        self._api.send("deregister_image", {"ImageId": image.id})

    def start_of(self, pool: Pool) -> str:
        """As machines are started."""
        return self._found.of(pool)

    def _bucket(self) -> str:
        if self._settings.image_bucket is None:
            region = self._settings.region
            raise ConfigError(
                f"cloud {self._settings.name!r}: image_bucket: found none, expected the name of a "
                f"bucket of S3 in {region} (docs/images.md)"
            )
        return self._settings.image_bucket

    def _tags(self, file: ImageFile) -> dict[str, str]:
        marks = image_marks(file, self._cluster)
        return {**marks, OS: file.os, VERSION: file.version, SOFTWARE: " ".join(file.software)}

    def _snapshot(self, file: ImageFile) -> str | None:
        """Our snapshot of the file, whole."""
        return self._found_snapshot(f"tag:{DIGEST}", file.digest)

    def _found_snapshot(self, name: str, value: str) -> str | None:
        filters = [{"Name": name, "Values": [value]}]
        request = {"OwnerIds": ["self"], "Filters": filters}
        for one in self._api.pages("describe_snapshots", "Snapshots", request):
            if one["State"] == _DONE:
                return str(one["SnapshotId"])
        return None

    def _imported(self, file: ImageFile, say: Callable[[str], None]) -> str:
        """The snapshot, tagged when it is whole. A task that is under way is not begun twice."""
        task = self._task(file)
        if task is None:
            self._send(file, say)
            task = self._begin(file)
            say(f"import {task} begun")
        else:
            say(f"import {task} of it was begun by an earlier upload")
        snapshot = self._awaited(file, task, say)
        self._tag(snapshot, image_marks(file, self._cluster))
        self._delete(file, say)
        return snapshot

    def _task(self, file: ImageFile) -> str | None:
        """An import of the file that is under way, or whose snapshot has no tags yet."""
        for one in self._tasks({}):
            if tags(one).get(DIGEST) == file.digest and self._serves(_detail(one)):
                return str(one["ImportTaskId"])
        return None

    def _serves(self, detail: Mapping[str, Any]) -> bool:
        if detail.get("Status") == _DONE:
            return self._found_snapshot("snapshot-id", detail["SnapshotId"]) is not None
        return detail.get("Status") == _ACTIVE

    def _tasks(self, request: Mapping[str, object]) -> Iterator[Mapping[str, Any]]:
        yield from self._api.pages("describe_import_snapshot_tasks", "ImportSnapshotTasks", request)

    def _send(self, file: ImageFile, say: Callable[[str], None]) -> None:
        """An object of S3 is there whole or not at all; a broken upload of parts is taken back."""
        bucket, key = self._bucket(), _key(file)
        say(f"{file.size >> 20} MiB are sent to S3, as {bucket}/{key}")
        with open(file.path, "rb") as data, translated(self._settings.name):
            self._s3().upload_fileobj(data, bucket, key)

    def _begin(self, file: ImageFile) -> str:
        place = {"S3Bucket": self._bucket(), "S3Key": _key(file)}
        marks = tag_list(image_marks(file, self._cluster))
        request = {
            "Description": file.name,
            "DiskContainer": {"Description": file.name, "Format": "RAW", "UserBucket": place},
            "ClientToken": str(uuid.uuid4()),
            "TagSpecifications": [{"ResourceType": "import-snapshot-task", "Tags": marks}],
        }
        return str(self._api.send("import_snapshot", request)["ImportTaskId"])

    def _awaited(self, file: ImageFile, task: str, say: Callable[[str], None]) -> str:
        """The snapshot of a task that has come to its end; ProviderError where it failed."""
        told, until = "", time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            detail = _detail(next(self._tasks({"ImportTaskIds": [task]}), {}))
            if detail.get("Status") == _DONE:
                return self._whole(file, detail)
            if detail.get("Status") != _ACTIVE:
                self._delete(file, say)
                text = detail.get("StatusMessage") or f"it is {detail.get('Status')}"
                raise ProviderError(self._settings.name, "ImportFailed", f"{task}: {text}")
            shown = f"import {task}: {detail.get('Progress') or '0'} %"
            if shown != told:
                say(shown)
            told = shown
            time.sleep(PERIOD)
        text = f"{task} is still under way; the next upload goes on with it"
        raise ProviderError(self._settings.name, "ImportSlow", text)

    def _whole(self, file: ImageFile, detail: Mapping[str, Any]) -> str:
        size = detail.get("DiskImageSize")
        if size is not None and int(size) != file.size:
            text = f"EC2 has imported {size:.0f} bytes of {file.size}"
            raise ProviderError(self._settings.name, "BadImage", text)
        return str(detail["SnapshotId"])

    def _delete(self, file: ImageFile, say: Callable[[str], None]) -> None:
        """The object in S3, which costs for as long as it is there."""
        bucket, key = self._bucket(), _key(file)
        try:
            with translated(self._settings.name):
                self._s3().delete_object(Bucket=bucket, Key=key)
        except ProviderError as error:
            say(f"{bucket}/{key} is left in S3, delete it there: {error}")

    def _registered(self, file: ImageFile, snapshot: str | None) -> str | None:
        """Our image whose disk the snapshot is. ProviderError where another one has the name, which
        EC2 would say after the import. Filtered here: not all that is like EC2 knows such filters.
        """
        mine = self._api.send("describe_images", {"Owners": ["self"]})["Images"]
        for one in mine:
            disks = (part.get("Ebs", {}) for part in one.get("BlockDeviceMappings", ()))
            if snapshot and any(disk.get("SnapshotId") == snapshot for disk in disks):
                return str(one["ImageId"])
        for one in mine:
            if one.get("Name") == file.name:
                text = f"{one['ImageId']} has the name {file.name}: name yours by --name"
                raise ProviderError(self._settings.name, "NameTaken", text)
        return None

    def _register(self, file: ImageFile, snapshot: str) -> str:
        """RegisterImage knows no client token: an order whose answer was lost may be repeated."""
        try:
            answer = self._api.send("register_image", _registration(file, snapshot))
        except ProviderError as error:
            mine = error.code == _DUPLICATE and self._registered(file, snapshot)
            if not mine:
                raise
            return mine
        return str(answer["ImageId"])

    def _await(self, number: str) -> None:
        until = time.monotonic() + _PATIENCE
        while (state := self._described(number).get("State")) == "pending":
            if time.monotonic() > until:
                break
            time.sleep(PERIOD)
        if state != "available":
            text = f"image {number} is {state}, expected available"
            raise ProviderError(self._settings.name, "BadImage", text)

    def _described(self, number: str) -> Mapping[str, Any]:
        found = self._api.send("describe_images", {"ImageIds": [number]})["Images"]
        return dict(found[0]) if found else {}

    def _tag(self, number: str, marks: Mapping[str, str]) -> None:
        request = {"Resources": [number], "Tags": tag_list(marks)}
        self._api.send("create_tags", request)

    def _s3(self) -> Any:  # noqa: ANN401 - boto3's
        """Its own time-outs and repetitions serve: parts are repeated whole."""
        seconds = self._settings.timeout
        config = Config(
            connect_timeout=seconds, read_timeout=seconds,
            retries={"total_max_attempts": 4, "mode": "standard"},
        )  # fmt: skip
        session = boto3.session.Session(
            profile_name=self._settings.profile, region_name=self._settings.region
        )
        return session.client("s3", endpoint_url=self._settings.endpoint, config=config)


def _key(file: ImageFile) -> str:
    return f"{FOLDER}{file.digest}.raw"


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


def _detail(task: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(task.get("SnapshotTaskDetail") or {})


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
