"""``--comment=ckpt=restartfile``: for programs that write ``restart.dat`` into their job's directory
from time to time (under another name, then renamed), and begin from it where it is there.

A save is the next such file. Nothing is copied: a newer file is a newer image.
"""

from __future__ import annotations

import stat
import time
from pathlib import Path

import msgspec

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.config.method_kinds import MethodKind
from slurm_elastic.model.checkpoint import Image

FILE = "restart.dat"
LOOK = 0.2
KEEP = 2


class RestartFile:
    """``slurm_elastic.model.protocols.Checkpointer``; ``records`` is a directory of SlurmUser's."""

    name = "restartfile"

    def __init__(self, slurm, records: Path) -> None:
        self._slurm, self._records = slurm, records

    def checkpoint(self, run, *, deadline, stop):
        begun, file = time.time(), Path(run.directory) / FILE
        before = _written(file)[0]
        while (found := _written(file))[0] <= before:
            if time.time() + LOOK > deadline:
                raise CheckpointError(f"job {run.label}: no new {file} in time")
            time.sleep(LOOK)
        if stop:
            self._signal(run, "STOP")
        known = self._read(run.job)
        image = Image(
            job=run.job, label=run.label, attempt=run.attempt, number=found[0], method=self.name,
            node=run.nodes[0], taken=time.time(), seconds=time.time() - begun, size=found[1],
            path=str(file),
        )  # fmt: skip
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._record(run.job).write_bytes(msgspec.json.encode((image, *known)[:KEEP]))
        return image

    def release(self, run):
        self._signal(run, "CONT")

    def images(self, run):
        return tuple(image for image in self._read(run.job) if _is_whole(image))

    def origin(self, run):  # noqa: ARG002
        return None  # only the program knows

    def hindered(self, run):  # noqa: ARG002
        return ""

    def is_at_work(self, run):  # noqa: ARG002
        return False  # only the program knows

    def verify(self, image):
        if not _is_whole(image):
            raise CheckpointError(
                f"{image.path} is not there, empty, or older than save {image.number}"
            )

    def remove(self, job):
        self._record(job).unlink(missing_ok=True)  # the file itself is its user's

    def _signal(self, run, name):
        try:
            self._slurm.signal(run.job, name, full=True)
        except SlurmError as error:
            raise CheckpointError(f"job {run.label}: {error}") from error

    def _record(self, job: int) -> Path:
        return self._records / f"{job}.json"

    def _read(self, job: int) -> tuple[Image, ...]:
        try:
            return msgspec.json.decode(self._record(job).read_bytes(), type=tuple[Image, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            raise CheckpointError(f"{self._record(job)}: {error}") from error


def _written(file: Path) -> tuple[int, int]:
    """When the file was written (ns) and its bytes; zeros where there is none."""
    try:
        found = file.lstat()
    except OSError:
        return 0, 0
    return (
        (found.st_mtime_ns, found.st_size)
        if stat.S_ISREG(found.st_mode) and found.st_size
        else (0, 0)
    )


def _is_whole(image: Image) -> bool:
    return _written(Path(image.path))[0] >= image.number


METHOD = MethodKind(
    name="restartfile",
    open=lambda config, slurm, look: RestartFile(slurm, config.state / "restartfile"),  # noqa: ARG005
    api=1,
)
