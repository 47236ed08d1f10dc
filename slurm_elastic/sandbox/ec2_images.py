"""Imports of disks and their registration in the emulated EC2: moto knows no ImportSnapshot, and
gives a registered image a disk of its own making.

As "ImportSnapshot", "DescribeImportSnapshotTasks" and "RegisterImage" of the EC2 API reference
have them: a task reads a whole object of S3, and its snapshot is there when it is ``completed``.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from msgspec import Struct

from slurm_elastic.sandbox.ec2_api import Call, answer_xml, elements, tag_set
from slurm_elastic.sandbox.ec2_events import ACCOUNT
from slurm_elastic.sandbox.ec2_faults import Ec2Error

_LOOKS = 2
"""A task is completed when so many have looked at it."""
_GIB = 1 << 30
_SECTOR = 512


class Task(Struct, kw_only=True):
    """An import; ``looks`` are still needed, ``failed`` says why it comes to nothing."""

    id: str
    token: str
    bucket: str
    key: str
    size: int
    tags: dict[str, str]
    looks: int = _LOOKS
    snapshot: str | None = None
    failed: str = ""


class Imports:
    """All imports of the account. One of a disk that does not end with a sector fails."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self._numbers = itertools.count(1)

    def told(self, call: Call) -> bytes | Ec2Error:
        """The answer to either call."""
        return self._begun(call) if call.action == "ImportSnapshot" else self._described(call)

    def _begun(self, call: Call) -> bytes | Ec2Error:
        token = call.params.get("ClientToken", "")
        known = [one for one in self.tasks.values() if token and one.token == token]
        made = known[0] if known else self._made(call, token)
        if isinstance(made, Ec2Error):
            return made
        self.tasks[made.id] = made
        return answer_xml(call.action, _told(made))

    def _described(self, call: Call) -> bytes:
        """Each look brings tasks on."""
        wanted = call.listed("ImportTaskId")
        found = [one for one in self.tasks.values() if not wanted or one.id in wanted]
        for one in found:
            _advance(one, call.region)
        items = "".join(f"<item>{_told(one)}</item>" for one in found)
        return answer_xml(call.action, f"<importSnapshotTaskSet>{items}</importSnapshotTaskSet>")

    def _made(self, call: Call, token: str) -> Task | Ec2Error:
        asked = call.params
        bucket = asked.get("DiskContainer.UserBucket.S3Bucket", "")
        key = asked.get("DiskContainer.UserBucket.S3Key", "")
        size = _size(bucket, key)
        if size is None:
            return Ec2Error("InvalidParameter", 400, f"The S3 object {bucket}/{key} is not there")
        if asked.get("DiskContainer.Format") not in ("RAW", "VHD", "VMDK"):
            return Ec2Error("InvalidParameter", 400, "Unsupported disk container format")
        return Task(
            id=f"import-snap-{secrets.token_hex(8)}{next(self._numbers)}", token=token,
            bucket=bucket, key=key, size=size, tags=call.import_tags(),
            failed="ClientError: Disk validation failed" if size % _SECTOR else "",
        )  # fmt: skip


def refused(call: Call) -> Ec2Error | None:
    """The refusal of RegisterImage: of a name that is taken, a snapshot that is not there."""
    backend, name = _backend(call.region), call.params.get("Name", "")
    if any(one.name == name for one in backend.amis.values()):
        return Ec2Error("InvalidAMIName.Duplicate", 400, f"AMI name {name} is already in use")
    snapshot = _root(call)
    if snapshot and snapshot not in backend.snapshots:
        text = f"The snapshot '{snapshot}' does not exist."
        return Ec2Error("InvalidSnapshot.NotFound", 400, text)
    return None


def registered(call: Call) -> None:
    """Have the image that moto has just made the disk and the properties that were asked for."""
    backend, asked = _backend(call.region), call.params
    image = next(one for one in backend.amis.values() if one.name == asked.get("Name"))
    if snapshot := _root(call):
        backend.snapshots.pop(image.ebs_snapshot.id, None)
        image.ebs_snapshot = backend.snapshots[snapshot]
    image.boot_mode = asked.get("BootMode", image.boot_mode)
    image.architecture = asked.get("Architecture", image.architecture)
    image.root_device_name = asked.get("RootDeviceName", image.root_device_name)
    image.virtualization_type = asked.get("VirtualizationType", image.virtualization_type)


def _root(call: Call) -> str | None:
    return call.params.get("BlockDeviceMapping.1.Ebs.SnapshotId")


def _advance(task: Task, region: str) -> None:
    task.looks = max(task.looks - 1, 0)
    if task.looks or task.failed or task.snapshot:
        return
    backend = _backend(region)
    volume = backend.create_volume(size=-(-task.size // _GIB), zone_name=f"{region}a")
    task.snapshot = backend.create_snapshot(volume.id, "Created by an import").id
    backend.delete_volume(volume.id)


def _told(task: Task) -> str:
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
    """Bytes of an object of the emulated S3; None where it is not there."""
    from moto.s3.exceptions import MissingBucket
    from moto.s3.models import s3_backends

    try:
        found = s3_backends[ACCOUNT]["aws"].head_object(bucket, key)
    except MissingBucket:
        return None
    return None if found is None else int(found.size)


def _backend(region: str) -> Any:  # noqa: ANN401 - moto's
    from moto.ec2.models import ec2_backends

    return ec2_backends[ACCOUNT][region]
