"""Imports of disks, and registration of images, in the emulated EC2. moto lacks ImportSnapshot, and
gives a registered image a disk of its own.

Source: "ImportSnapshot", "DescribeImportSnapshotTasks" and "RegisterImage" in the EC2 API
reference. A task reads a whole object of S3. Its snapshot exists when the task is ``completed``.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from msgspec import Struct

from slurm_elastic.sandbox.ec2.api import Ec2Call, answer_xml, elements, tag_set
from slurm_elastic.sandbox.ec2.events import ACCOUNT
from slurm_elastic.sandbox.ec2.faults import Ec2Error

_LOOKS_UNTIL_DONE = 2
"""Describe calls after which a task is completed. A count is used instead of a time, so that tests
need not wait.
"""
_GIB = 1 << 30
_SECTOR_BYTES = 512


class Task(Struct, kw_only=True):
    """An import. ``looks``: the Describe calls until it is completed; ``failed``: its error, or
    "".
    """

    id: str
    token: str
    bucket: str
    key: str
    size: int
    tags: dict[str, str]
    looks: int = _LOOKS_UNTIL_DONE
    snapshot: str | None = None
    failed: str = ""


class Imports:
    """All imports of the account. A disk whose size is no multiple of a sector fails."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self._numbers = itertools.count(1)

    def answer(self, call: Ec2Call) -> bytes | Ec2Error:
        """Return the answer to ImportSnapshot or DescribeImportSnapshotTasks."""
        return self._import(call) if call.action == "ImportSnapshot" else self._describe(call)

    def _import(self, call: Ec2Call) -> bytes | Ec2Error:
        token = call.params.get("ClientToken", "")
        repeated = [task for task in self.tasks.values() if token and task.token == token]
        new_task = repeated[0] if repeated else self._new_task(call, token)
        if isinstance(new_task, Ec2Error):
            return new_task
        self.tasks[new_task.id] = new_task
        return answer_xml(call.action, _task_xml(new_task))

    def _describe(self, call: Ec2Call) -> bytes:
        """Describe tasks. Each call advances them."""
        ids = call.listed("ImportTaskId")
        tasks = [task for task in self.tasks.values() if not ids or task.id in ids]
        for task in tasks:
            _advance(task, call.region)
        items = "".join(f"<item>{_task_xml(task)}</item>" for task in tasks)
        return answer_xml(call.action, f"<importSnapshotTaskSet>{items}</importSnapshotTaskSet>")

    def _new_task(self, call: Ec2Call, token: str) -> Task | Ec2Error:
        params = call.params
        bucket = params.get("DiskContainer.UserBucket.S3Bucket", "")
        key = params.get("DiskContainer.UserBucket.S3Key", "")
        size = _size(bucket, key)
        if size is None:
            return Ec2Error("InvalidParameter", 400, f"The S3 object {bucket}/{key} is not there")
        if params.get("DiskContainer.Format") not in ("RAW", "VHD", "VMDK"):
            return Ec2Error("InvalidParameter", 400, "Unsupported disk container format")
        return Task(
            id=f"import-snap-{secrets.token_hex(8)}{next(self._numbers)}", token=token,
            bucket=bucket, key=key, size=size, tags=call.import_tags(),
            failed="ClientError: Disk validation failed" if size % _SECTOR_BYTES else "",
        )  # fmt: skip


def refusal_of(call: Ec2Call) -> Ec2Error | None:
    """Return EC2's error if RegisterImage names a used name or an unknown snapshot, else None."""
    backend, name = _backend(call.region), call.params.get("Name", "")
    if any(image.name == name for image in backend.amis.values()):
        return Ec2Error("InvalidAMIName.Duplicate", 400, f"AMI name {name} is already in use")
    snapshot = _root_snapshot(call)
    if snapshot and snapshot not in backend.snapshots:
        text = f"The snapshot '{snapshot}' does not exist."
        return Ec2Error("InvalidSnapshot.NotFound", 400, text)
    return None


def complete_image(call: Ec2Call) -> None:
    """Give the image that moto has just made the requested disk and properties."""
    backend, params = _backend(call.region), call.params
    image = next(
        image_of_moto
        for image_of_moto in backend.amis.values()
        if image_of_moto.name == params.get("Name")
    )
    if snapshot := _root_snapshot(call):
        backend.snapshots.pop(image.ebs_snapshot.id, None)
        image.ebs_snapshot = backend.snapshots[snapshot]
    image.boot_mode = params.get("BootMode", image.boot_mode)
    image.architecture = params.get("Architecture", image.architecture)
    image.root_device_name = params.get("RootDeviceName", image.root_device_name)
    image.virtualization_type = params.get("VirtualizationType", image.virtualization_type)


def _root_snapshot(call: Ec2Call) -> str | None:
    return call.params.get("BlockDeviceMapping.1.Ebs.SnapshotId")


def _advance(task: Task, region: str) -> None:
    task.looks = max(task.looks - 1, 0)
    if task.looks or task.failed or task.snapshot:
        return
    backend = _backend(region)
    volume = backend.create_volume(size=-(-task.size // _GIB), zone_name=f"{region}a")
    task.snapshot = backend.create_snapshot(volume.id, "Created by an import").id
    backend.delete_volume(volume.id)


def _task_xml(task: Task) -> str:
    status = "deleted" if task.failed else "completed" if task.snapshot else "active"
    detail = elements(
        diskImageSize=float(task.size), format="RAW", status=status, snapshotId=task.snapshot,
        progress=None if status != "active" else "42", statusMessage=task.failed or None,
    )  # fmt: skip
    bucket = f"<userBucket>{elements(s3Bucket=task.bucket, s3Key=task.key)}</userBucket>"
    return (
        f"{elements(importTaskId=task.id)}<snapshotTaskDetail>{detail}{bucket}"
        f"</snapshotTaskDetail>{tag_set(task.tags)}"
    )


def _size(bucket: str, key: str) -> int | None:
    """Return the bytes of an object in the emulated S3; None if it does not exist."""
    from moto.s3.exceptions import MissingBucket
    from moto.s3.models import s3_backends

    try:
        s3_object = s3_backends[ACCOUNT]["aws"].head_object(bucket, key)
    except MissingBucket:
        return None
    return None if s3_object is None else int(s3_object.size)


def _backend(region: str) -> Any:  # noqa: ANN401 - moto's
    from moto.ec2.models import ec2_backends

    return ec2_backends[ACCOUNT][region]
