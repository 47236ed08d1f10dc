"""The head's side of the methods that the launcher serves, transparent saves of a job on one node:
``criu`` (CRIU 4) and ``dmtcp`` (DMTCP 4.2.0, of which Debian has no package).

The launcher's session on the node makes the job's directory on the shared file system, with a file
``request`` that is SlurmUser's. We write a request into that file, and the session answers in
``status.json``. ``machine.ckptroot.store`` describes the directory. Images are root's; the head may
read them, to verify them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from slurm_elastic.base.bounded import Budget
from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.base.in_time import InTime
from slurm_elastic.base.units import brief
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.policies.checkpoint.unsavable import unfit

MARGIN = 0.5
"""Seconds before the deadline by which the node must have answered."""
RELEASE_PATIENCE = 120.0
"""Seconds that a held job may take until it goes on where it was stopped."""
ANSWER = 30.0
"""Seconds for a look at the shared directory."""
VERIFY_LEAST = 120.0
VERIFY_RATE = 16 << 20
"""An image has ``VERIFY_LEAST`` seconds plus one for each so many bytes to be verified: 21 minutes
for 20 GiB. From a slower directory nobody could restore before a deadline either.
"""
T = TypeVar("T")
_STANDING = ("running", "held")
_MOST = 4 << 20
_BLOCK = 1 << 20


class _Listed(Struct, frozen=True, kw_only=True):
    job: int
    label: str
    attempt: int
    number: int
    method: str
    uid: int
    node: str
    taken: float
    seconds: float
    size: int


class _Answer(Struct, frozen=True, kw_only=True):
    request: str = ""
    ok: bool = False
    message: str = ""
    image: int = 0


class _Status(Struct, frozen=True, kw_only=True):
    state: str
    job: int
    attempt: int
    uid: int
    node: str
    method: str
    answer: _Answer = field(default_factory=_Answer)
    origin: Origin = Origin()
    hindered: str = ""
    images: tuple[_Listed, ...] = ()


class _Request(Struct, frozen=True, kw_only=True):
    id: str
    verb: str
    stop: bool = False
    within: float = 0.0
    tcp: str = ""


class _Manifest(Struct, frozen=True, kw_only=True):
    job: int
    attempt: int
    number: int
    method: str
    files: dict[str, tuple[int, str]]


class _NoAnswerError(CheckpointError):
    """The launcher said nothing in time; nobody knows what it does with the request."""


class LaunchedCheckpointer:
    """``model.protocols.Checkpointer`` by requests to the job's launcher.

    ``directory`` is the cluster's on the shared file system (``checkpoint.directory``/cluster).
    ``poll``: seconds between two looks for an answer.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        poll: float = 0.2,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._directory = directory
        self._poll = poll
        self._clock = clock
        self._monotonic = monotonic
        self._in_time = InTime()

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        """Have the run saved by its launcher."""
        self._standing(run)
        within = deadline - self._clock() - MARGIN
        if within <= 0:
            raise CheckpointError(f"job {run.label}: no time left for a checkpoint")
        asked = _Request(
            id=uuid.uuid4().hex, verb="checkpoint", stop=stop, within=within,
            tcp=run.options.get("tcp", ""),
        )  # fmt: skip
        try:
            answer = self._ask(run, asked, deadline)
        except _NoAnswerError:
            self._take_back(run)
            raise
        for image in self.images(run):
            if image.number == answer.image:
                return image
        if stop:
            self._take_back(run)
        raise CheckpointError(f"job {run.label}: image {answer.image} is not whole")

    def release(self, run: JobRun) -> None:
        """Have a held run go on where it was stopped."""
        self._standing(run)
        deadline = self._clock() + RELEASE_PATIENCE
        self._ask(run, _Request(id=uuid.uuid4().hex, verb="release"), deadline)

    def images(self, run: JobRun) -> Sequence[Image]:
        """The images that have all their files at full length; ``verify`` checks contents."""
        status = self._status(run.job)
        if status is None or status.uid != run.uid or self._removed(run.job):
            return ()
        listed = (one for one in status.images if (one.method, one.job) == (self.name, run.job))
        found = [self._image(one) for one in listed]
        return tuple(image for image in found if self._whole(image))

    def origin(self, run: JobRun) -> Origin | None:
        """What its launcher wrote into the job's status."""
        status = self._status(run.job)
        if status is None or (status.attempt, status.uid) != (run.attempt, run.uid):
            return None
        return status.origin

    def hindered(self, run: JobRun) -> str:
        """What its launcher finds once a minute."""
        status = self._status(run.job)
        if status is None or (status.attempt, status.uid) != (run.attempt, run.uid):
            return ""
        return status.hindered

    def verify(self, image: Image) -> None:
        """Compare sizes and digests of all files, which SlurmUser may read. The time for that
        depends on the image's size, however slowly the directory answers.
        """
        seconds = VERIFY_LEAST + image.size / VERIFY_RATE
        budget = Budget(sys.maxsize, seconds, self._monotonic)
        try:
            self._in_time.do("", lambda: self._verify(image, budget), seconds + MARGIN)
        except TimeoutError as error:
            why = f"cannot be verified within {brief(seconds)}: {error}"
            raise CheckpointError(f"{image.path}: {why}") from error

    def _verify(self, image: Image, budget: Budget) -> None:
        for name, (size, sha) in self._files(image).items():
            path = Path(image.path) / name
            try:
                if path.lstat().st_size != size:
                    raise CheckpointError(f"{path}: not {size} bytes long")
                if _digest(path, size, budget) != sha:
                    raise CheckpointError(f"{path}: changed since the checkpoint")
            # Of the budget: it is an OSError, too.
            except TimeoutError:
                raise
            except OSError as error:
                raise CheckpointError(f"{path}: {error.strerror}") from error

    def remove(self, job: int) -> None:
        """Leave the job's directory to the sweeper, which is root and asks Slurm first."""
        if (self._directory / str(job) / "request").exists():
            self._write(job, _Request(id=uuid.uuid4().hex, verb="remove"))

    def _standing(self, run: JobRun) -> None:
        """CheckpointError unless this very run is under the launcher, by this method."""
        status = self._status(run.job)
        if status is None or status.state not in _STANDING or status.attempt != run.attempt:
            why = unfit(self.name, batch=True, nodes=len(run.nodes))
            raise CheckpointError(f"job {run.label}: {why or 'this run is not under the launcher'}")
        if (status.uid, status.method) != (run.uid, self.name):
            found = f"of uid {status.uid}, by {status.method}"
            raise CheckpointError(f"job {run.label}: what its launcher drives is {found}")

    def _ask(self, run: JobRun, request: _Request, deadline: float) -> _Answer:
        self._write(run.job, request)
        while True:
            status = self._status(run.job)
            if status is not None and status.answer.request == request.id:
                break
            if self._clock() >= deadline:
                raise _NoAnswerError(
                    f"job {run.label}: no answer to {request.verb} in time: its launcher on"
                    f" {status.node if status else 'its node'} is still at it, or cannot write to"
                    f" {self._directory}"
                )
            time.sleep(min(self._poll, max(deadline - self._clock(), 0.01)))
        if not status.answer.ok:
            raise CheckpointError(f"job {run.label}: {status.answer.message}")
        return status.answer

    def _take_back(self, run: JobRun) -> None:
        """Undo a request that nobody answered: if the launcher sees it late, it must not stop the
        job for it, nor leave it stopped, as nobody waits for that any more.
        """
        with contextlib.suppress(CheckpointError):
            self._write(run.job, _Request(id=uuid.uuid4().hex, verb="release"))

    def _write(self, job: int, request: _Request) -> None:
        """Write in place: the file is the node's, in a directory that is not ours."""
        path = self._directory / str(job) / "request"
        content = msgspec.json.encode(request)
        try:
            file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.pwrite(file, content, 0)
                os.ftruncate(file, len(content))
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error

    def _look(self, look: Callable[[], T]) -> T:
        """The result; an OSError if no answer comes."""
        # To wait for a directory that hangs would hold up the saves by other methods, too.
        return self._in_time.do("", look, ANSWER)

    def _removed(self, job: int) -> bool:
        try:
            content = self._look(lambda: _read(self._directory / str(job) / "request"))
            return msgspec.json.decode(content, type=_Request).verb == "remove"
        except (OSError, msgspec.DecodeError):
            return False

    def _status(self, job: int) -> _Status | None:
        path = self._directory / str(job) / "status.json"
        try:
            return msgspec.json.decode(self._look(lambda: _read(path)), type=_Status)
        except (OSError, msgspec.DecodeError):
            return None

    def _files(self, image: Image) -> dict[str, tuple[int, str]]:
        path = Path(image.path) / "manifest.json"
        try:
            found = msgspec.json.decode(self._look(lambda: _read(path)), type=_Manifest)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{path}: {error}") from error
        of = (found.job, found.attempt, found.number, found.method)
        if of != (image.job, image.attempt, image.number, image.method):
            told = "it is of job {}, run {}, save {} by {}".format(*of)
            raise CheckpointError(f"{path}: {told}, not save {image.number} of job {image.label}")
        return found.files

    def _image(self, one: _Listed) -> Image:
        """The image that is listed so."""
        return Image(
            job=one.job,
            label=one.label,
            attempt=one.attempt,
            number=one.number,
            method=one.method,
            node=one.node,
            taken=one.taken,
            seconds=one.seconds,
            size=one.size,
            # As the head sees it: nodes may have mounted the directory elsewhere.
            path=str(self._directory / str(one.job) / "images" / str(one.number)),
        )

    def _whole(self, image: Image) -> bool:
        try:
            sizes = {Path(image.path) / n: size for n, (size, _) in self._files(image).items()}
            return self._look(lambda: all(p.lstat().st_size == n for p, n in sizes.items()))
        except (CheckpointError, OSError):
            return False


def _open(path: Path) -> int:
    """Open a regular file, never a link or a pipe that somebody put there."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _read(path: Path) -> bytes:
    with open(_open(path), "rb") as opened:
        return opened.read(_MOST)


def _digest(path: Path, size: int, budget: Budget) -> str:
    """The digest of a file of ``size`` bytes. TimeoutError after the budget's time."""
    # Of a longer file just enough is read to notice.
    sha, left = hashlib.sha256(), size + 1
    with open(_open(path), "rb", buffering=0) as opened:
        while left > 0 and (block := opened.read(min(_BLOCK, left))):
            budget.left()
            sha.update(block)
            left -= len(block)
    return sha.hexdigest()
