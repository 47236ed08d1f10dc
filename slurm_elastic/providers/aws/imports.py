"""Turns a raw disk image into a snapshot: sent to S3, imported from there by EC2, tagged when
complete.

Every later upload finds a task and a snapshot by the file's digest in their tags. So nothing is
imported twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3
from botocore.config import Config

from slurm_elastic.base.errors import ConfigError, ProviderError
from slurm_elastic.base.pages import page
from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import ImageFile
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.convert import tags
from slurm_elastic.providers.aws.errors import translated
from slurm_elastic.providers.aws.requests import tag_list
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.image_marks import DIGEST, image_marks

FOLDER = "slurm-elastic/"
"""All our objects in the bucket are below this prefix."""
POLL_EVERY_S = 5.0
_IMPORT_TIMEOUT_S = 6 * 3600.0
"""Seconds for an import. EC2 usually takes minutes."""
_ACTIVE, _DONE = "active", "completed"


class Snapshots:
    """The snapshots of image files in one account and region."""

    def __init__(self, api: AwsApi, settings: AwsCloud, cluster: Cluster) -> None:
        self._api = api
        self._settings = settings
        self._cluster = cluster

    def object_of(self, file: ImageFile) -> str:
        """Where the file goes in S3. ConfigError if the settings name no bucket."""
        return f"{self._bucket()}/{_key(file)}"

    def of(self, file: ImageFile) -> str | None:
        """Our complete snapshot of the file, or None."""
        return self._found_snapshot(f"tag:{DIGEST}", file.digest)

    def _found_snapshot(self, name: str, value: str) -> str | None:
        filters = [{"Name": name, "Values": [value]}]
        request = {"OwnerIds": ["self"], "Filters": filters}
        for snapshot in self._api.pages("describe_snapshots", "Snapshots", request):
            if snapshot["State"] == _DONE:
                return str(snapshot["SnapshotId"])
        return None

    def imported(self, file: ImageFile, say: Callable[[str], None]) -> str:
        """Import the file and return its snapshot, tagged when complete. A running task is joined,
        not started twice.
        """
        task = self._task(file)
        if task is None:
            self._send(file, say)
            task = self._start_import(file)
            say(f"import {task} started")
        else:
            say(f"an earlier upload started import {task} of it")
        snapshot = self._wait_for_import(file, task, say)
        request = {
            "Resources": [snapshot],
            "Tags": tag_list(image_marks(file, self._cluster)),
        }
        self._api.send("create_tags", request)
        # The object costs money, and the snapshot no longer needs it.
        self.delete(file, say)
        return snapshot

    def _task(self, file: ImageFile) -> str | None:
        """A running import task of the file, or a finished one whose snapshot has no tags yet."""
        for task in self._tasks({}):
            if tags(task).get(DIGEST) == file.digest and self._serves(_detail(task)):
                return str(task["ImportTaskId"])
        return None

    def _serves(self, detail: Mapping[str, Any]) -> bool:
        if detail.get("Status") == _DONE:
            # The snapshot may have been deleted since; then the file is imported again.
            return self._found_snapshot("snapshot-id", detail["SnapshotId"]) is not None
        return detail.get("Status") == _ACTIVE

    def _tasks(self, request: Mapping[str, object]) -> Iterator[Mapping[str, Any]]:
        yield from self._api.pages("describe_import_snapshot_tasks", "ImportSnapshotTasks", request)

    def _send(self, file: ImageFile, say: Callable[[str], None]) -> None:
        """Upload the file. S3 shows an object only when it is complete; an interrupted upload in
        parts is aborted.
        """
        bucket, key = self._bucket(), _key(file)
        say(f"{file.size >> 20} MiB are sent to S3, as {bucket}/{key}")
        with open(file.path, "rb") as data, translated(self._settings.name):
            self._s3().upload_fileobj(data, bucket, key)

    def _start_import(self, file: ImageFile) -> str:
        place = {"S3Bucket": self._bucket(), "S3Key": _key(file)}
        marks = tag_list(image_marks(file, self._cluster))
        request = {
            "Description": file.name,
            "DiskContainer": {"Description": file.name, "Format": "RAW", "UserBucket": place},
            # A new token each time: an earlier task with the same content may have failed.
            "ClientToken": str(uuid.uuid4()),
            "TagSpecifications": [{"ResourceType": "import-snapshot-task", "Tags": marks}],
        }
        return str(self._api.send("import_snapshot", request)["ImportTaskId"])

    def _wait_for_import(self, file: ImageFile, task: str, say: Callable[[str], None]) -> str:
        """The snapshot of the task when it is finished. ProviderError if the task fails."""
        last_shown, give_up_at = "", time.monotonic() + _IMPORT_TIMEOUT_S
        while time.monotonic() < give_up_at:
            detail = _detail(next(self._tasks({"ImportTaskIds": [task]}), {}))
            if detail.get("Status") == _DONE:
                return self._checked_snapshot(file, detail)
            if detail.get("Status") != _ACTIVE:
                self.delete(file, say)
                text = detail.get("StatusMessage") or f"it is {detail.get('Status')}"
                raise ProviderError(self._settings.name, "ImportFailed", f"{task}: {text}")
            shown = f"import {task}: {detail.get('Progress') or '0'} %"
            if shown != last_shown:
                say(shown)
            last_shown = shown
            time.sleep(POLL_EVERY_S)
        text = f"{task} is still running; the next upload continues with it"
        raise ProviderError(self._settings.name, "ImportSlow", text)

    def _checked_snapshot(self, file: ImageFile, detail: Mapping[str, Any]) -> str:
        size = detail.get("DiskImageSize")
        # Another size means that the object was not this file, or not all of it.
        if size is not None and int(size) != file.size:
            text = f"EC2 has imported {size:.0f} bytes of {file.size}"
            raise ProviderError(self._settings.name, "BadImage", text)
        return str(detail["SnapshotId"])

    def delete(self, file: ImageFile, say: Callable[[str], None]) -> None:
        """Delete the object in S3, which costs money as long as it exists."""
        bucket, key = self._bucket(), _key(file)
        try:
            with translated(self._settings.name):
                self._s3().delete_object(Bucket=bucket, Key=key)
        except ProviderError as error:
            say(f"{bucket}/{key} is left in S3, delete it there: {error}")

    def _bucket(self) -> str:
        if self._settings.image_bucket is None:
            region = self._settings.region
            raise ConfigError(
                f"cloud {self._settings.name!r}: image_bucket: found none, expected the name of a "
                f"bucket of S3 in {region} ({page('images')})"
            )
        return self._settings.image_bucket

    def _s3(self) -> Any:  # noqa: ANN401 - boto3's
        """A client of S3. It has time-outs and retries of its own, because it repeats
        whole parts.
        """
        seconds = self._settings.api_timeout
        config = Config(
            connect_timeout=seconds, read_timeout=seconds,
            retries={"total_max_attempts": 4, "mode": "standard"},
        )  # fmt: skip
        session = boto3.session.Session(
            profile_name=self._settings.profile, region_name=self._settings.region
        )
        return session.client("s3", endpoint_url=self._settings.endpoint_of("s3"), config=config)


def _key(file: ImageFile) -> str:
    return f"{FOLDER}{file.digest}.raw"


def _detail(task: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(task.get("SnapshotTaskDetail") or {})
