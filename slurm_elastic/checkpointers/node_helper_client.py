"""The head's side of the methods that the launcher on a node carries out: ``criu`` (CRIU 4) and
``dmtcp`` (DMTCP 4.2.0; Debian has no package of it). Both save a job on one node transparently,
``dmtcp`` also an MPI job on several.

The launcher's session on the node makes the job's directory on the shared file system. In it is a
file ``request`` that belongs to SlurmUser. The head writes a request into that file, and the
session answers in ``status.json``. ``machine.ckptroot.store`` describes the directory. Images
belong to root; the head may read them, so that it can verify them.
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
from msgspec.structs import replace

from slurm_elastic.base.errors import CheckpointError, UnreadableError, reason_of
from slurm_elastic.base.processes.bounded import ReadBudget
from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.base.units import brief
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.job_key import JobKey
from slurm_elastic.policies.checkpoint.unsavable import unfit

ITSELF = ", as a job of several nodes is only if it names the method itself (--comment=ckpt=)"
MARGIN_S = 0.5
"""Seconds before the deadline by which the node must have answered."""
RELEASE_TIMEOUT_S = 120.0
"""Seconds until a held job must run again after a release."""
READ_TIMEOUT_S = 30.0
"""Seconds for one read in the shared directory."""
WRITE_TIMEOUT_S = 30.0
"""Seconds for the write of a request."""
CANCEL_TIMEOUT_S = 2.0
"""The same for the release that replaces a request. The save has failed already, and the thread
goes on writing after this time.
"""
STATUS_ROOM = 1 << 20
"""Free bytes with which a launcher can write its status."""
VERIFY_MIN_S = 120.0
RENEW_HOLD_EVERY_S = 60.0
"""Seconds between two renewals of a hold (``machine/ckptroot/hold.py`` has twice as much)."""
VERIFY_RATE = 16 << 20
"""Bytes per second. The time to verify an image is ``VERIFY_MIN_S`` plus its size divided by this
rate: 23 minutes for 20 GiB. No job could be restored in time from a slower directory. The launcher
holds the stopped job for as long (``machine/ckptroot/hold.py`` has the same rate).
"""
T = TypeVar("T")
_SAVABLE_STATES = ("running", "held", "unfit")
_MAX_FILE_BYTES = 16 << 20
"""Nodes write no longer manifests (``machine/ckptroot/manifest.py`` has the same number)."""
_BLOCK_BYTES = 1 << 20


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
    submitted: float = 0.0


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
    run: str = ""
    submitted: float = 0.0

    @property
    def key(self) -> JobKey:
        """The identity of the job, as seen in the run that wrote this."""
        return JobKey(number=self.job, uid=self.uid, attempt=self.attempt, submitted=self.submitted)

    def is_of(self, run: JobRun) -> bool:
        """Whether the launcher of this run wrote this."""
        return self.attempt == run.attempt and run.key.may_follow(self.key)


class _Request(Struct, frozen=True, kw_only=True):
    id: str
    verb: str
    stop: bool = False
    within: float = 0.0
    tcp: str = ""
    run: str = ""
    """The token of the run that shall carry it out, from its status."""
    attempt: int = -1
    reason: str = ""
    """With ``forget``: the run whose images the next run must not use, and why."""


class _Manifest(Struct, frozen=True, kw_only=True):
    job: int
    attempt: int
    number: int
    method: str
    files: dict[str, tuple[int, str]]


class _NoAnswerError(CheckpointError):
    """The launcher or the shared directory did not answer in time, so it is unknown whether the
    request is carried out.
    """


class LaunchedCheckpointer:
    """``model.protocols.Checkpointer`` by requests to the job's launcher.

    ``directory`` is the cluster's directory on the shared file system
    (``checkpoint.directory``/cluster). ``poll``: seconds between two looks for an answer.
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
        self._newest_requests: dict[int, str] = {}

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        """Ask the launcher for a save and return its image. Raises CheckpointError."""
        token = self._require_launched(run).run
        within = deadline - self._clock() - MARGIN_S
        if within <= 0:
            raise CheckpointError(f"job {run.label}: no time left for a checkpoint")
        request = _Request(
            id=uuid.uuid4().hex, verb="checkpoint", stop=stop, within=within,
            tcp=run.options.get("tcp", ""), run=token,
        )  # fmt: skip
        try:
            answer = self._ask(run, request, deadline)
        except _NoAnswerError:
            self._cancel_request(run, token)
            raise
        for image in self.images(run):
            if image.number == answer.image:
                return image
        if stop:
            self._cancel_request(run, token)
        raise CheckpointError(f"job {run.label}: image {answer.image} is not whole")

    def release(self, run: JobRun) -> None:
        """Continue a held run where it was stopped. Raises CheckpointError."""
        token = self._require_launched(run).run
        deadline = self._clock() + RELEASE_TIMEOUT_S
        self._ask(run, _Request(id=uuid.uuid4().hex, verb="release", run=token), deadline)

    def images(self, run: JobRun) -> Sequence[Image]:
        """Return the images of which all files have their full length. ``verify`` checks
        contents. UnreadableError if the directory cannot be read now.
        """
        status = self._status(run.job)
        if status is None or not run.key.may_follow(status.key):
            return ()
        request = self._last_request(run.job)
        if request.verb == "remove":
            return ()
        # The last run wrote the list. The next run removes the forgotten images.
        forgotten_attempt = request.attempt if request.verb == "forget" else None
        images = [
            self._image(entry)
            for entry in status.images
            if entry.method == self.name and entry.attempt != forgotten_attempt
        ]
        return tuple(
            image for image in images if run.key.may_follow(image.key) and self._is_whole(image)
        )

    def origin(self, run: JobRun) -> Origin | None:
        """Return the origin that the launcher of this run wrote into the job's status."""
        status = self._status_if_readable(run.job)
        if status is None or not status.is_of(run):
            return None
        # A launcher that could not begin waits for another node if the job has images.
        has_given_up = status.state == "abandoned" and bool(status.images)
        return replace(status.origin, is_unfit=status.state == "unfit" or has_given_up)

    def hindered(self, run: JobRun) -> str:
        """Return the obstacle to a save that the launcher found; it checks once a minute."""
        status = self._status_if_readable(run.job)
        if status is None or not status.is_of(run):
            return ""
        return status.hindered

    def is_at_work(self, run: JobRun) -> bool:
        """Return whether the launcher of this run wrote into the job's status that it runs."""
        status = self._status_if_readable(run.job)
        if status is None or not status.is_of(run):
            return False
        return status.state == "running"

    def is_silent(self, run: JobRun) -> bool:
        """Return whether another run of the job wrote the job's status last, although there is
        room to write it.
        """
        if not self._has_room():
            return False
        status = self._status(run.job)
        return status is not None and run.key.may_follow(status.key) and not status.is_of(run)

    def verify(self, image: Image) -> None:
        """Compare sizes and digests of all files, which SlurmUser may read.

        Raises CheckpointError, also after a time that depends only on the image's size, so that a
        directory that hangs cannot block the caller.
        """
        seconds = VERIFY_MIN_S + image.size / VERIFY_RATE
        budget = ReadBudget(sys.maxsize, seconds, self._monotonic)
        try:
            self._in_time.call("", lambda: self._verify(image, budget), seconds + MARGIN_S)
        except TimeoutError as error:
            reason = f"cannot be verified within {brief(seconds)}: {error}"
            raise UnreadableError(f"{image.path}: {reason}") from error

    def _verify(self, image: Image, budget: ReadBudget) -> None:
        renew_at = self._monotonic() + RENEW_HOLD_EVERY_S

        def renew_hold_if_due() -> None:
            nonlocal renew_at
            budget.remaining_s()
            if self._monotonic() >= renew_at:
                renew_at = self._monotonic() + RENEW_HOLD_EVERY_S
                self._renew_hold(image)

        for name, (size, sha) in self._files(image).items():
            path = Path(image.path) / name
            try:
                if path.lstat().st_size != size:
                    raise CheckpointError(f"{path}: not {size} bytes long")
                if _digest(path, size, renew_hold_if_due) != sha:
                    raise CheckpointError(f"{path}: changed since the checkpoint")
            # The budget's time is over. TimeoutError is a subclass of OSError, so this clause must
            # come first.
            except TimeoutError:
                raise
            except OSError as error:
                raise self._image_error(path, error) from error

    def _renew_hold(self, image: Image) -> None:
        """Keep the stopped run of the image from continuing while we read the image."""
        status = self._status_if_readable(image.job)
        is_held = status is not None and status.state == "held"
        if status is None or not is_held or status.attempt != image.attempt:
            return
        # If it fails, the launcher's own time for the verification counts.
        with contextlib.suppress(CheckpointError):
            self._write(image.job, _Request(id=uuid.uuid4().hex, verb="hold", run=status.run))

    def remove(self, job: int) -> None:
        """Ask the sweeper to remove the job's directory. The sweeper is root, and asks Slurm about
        the job first.
        """
        if self._read_in_time((self._directory / str(job) / "request").exists):
            self._write(job, _Request(id=uuid.uuid4().hex, verb="remove"))
        self._newest_requests.pop(job, None)

    def forget(self, run: JobRun, attempt: int, reason: str) -> None:
        """Have the job's next run remove the images of this attempt before it chooses one."""
        request = _Request(id=uuid.uuid4().hex, verb="forget", attempt=attempt, reason=reason)
        self._write(run.job, request)

    def _require_launched(self, run: JobRun) -> _Status:
        """Return the run's status. Raise CheckpointError unless this attempt runs under the
        launcher, with this method.
        """
        status = self._status(run.job)
        is_stale = status is None or status.attempt != run.attempt
        if status is None or is_stale or status.state not in _SAVABLE_STATES:
            unfitness = unfit(self.name, batch=True, nodes=len(run.nodes))
            reason = "" if unfitness is None else str(unfitness)
            # The root part may have looked at this run and refused it.
            if status is not None and (status.state, status.attempt) == ("abandoned", run.attempt):
                reason = reason or status.origin.why
            if not reason:
                reason = "this run is not under the launcher" + (ITSELF if run.nodes[1:] else "")
            raise CheckpointError(f"job {run.label}: {reason}")
        if not status.is_of(run) or status.method != self.name:
            other_run = f"of uid {status.uid} with method {status.method}"
            raise CheckpointError(f"job {run.label}: its launcher serves another run, {other_run}")
        return status

    def _ask(self, run: JobRun, request: _Request, deadline: float) -> _Answer:
        self._write(run.job, request)
        while True:
            status = self._status_if_readable(run.job)
            if status is not None and status.answer.request == request.id:
                break
            if self._clock() >= deadline:
                raise _NoAnswerError(
                    f"job {run.label}: no answer to {request.verb} in time: its launcher on"
                    f" {status.node if status else 'its node'} is still working on it, or"
                    f" cannot write to {self._directory}"
                )
            time.sleep(min(self._poll, max(deadline - self._clock(), 0.01)))
        if not status.answer.ok:
            raise CheckpointError(f"job {run.label}: {status.answer.message}")
        return status.answer

    def _cancel_request(self, run: JobRun, token: str) -> None:
        """Replace an unanswered request by a release. Otherwise a launcher that reads the request
        late would stop the job, and no caller waits that would release it.
        """
        with contextlib.suppress(CheckpointError):
            request = _Request(id=uuid.uuid4().hex, verb="release", run=token)
            self._write(run.job, request, CANCEL_TIMEOUT_S)

    def _write(self, job: int, request: _Request, timeout_s: float | None = None) -> None:
        """Write the file in place. A rename is not possible, because the directory is not
        SlurmUser's.
        """
        path = self._directory / str(job) / "request"
        content = msgspec.json.encode(request)
        self._newest_requests[job] = request.id

        def write() -> None:
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                # If the open has hung, the caller has given up since, and a later request of it
                # must win. Otherwise the launcher would stop a job that nobody releases.
                if self._newest_requests.get(job) != request.id:
                    return
                # Write first, truncate after it: the launcher never reads an empty file.
                os.pwrite(descriptor, content, 0)
                os.ftruncate(descriptor, len(content))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

        try:
            # Each job has threads of its own, so that its release is written although the writes of
            # other jobs hang.
            self._in_time.call(("request", job), write, timeout_s or WRITE_TIMEOUT_S)
        except TimeoutError as error:
            raise _NoAnswerError(f"{path} cannot be written now: {error}") from error
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error

    def _read_in_time(self, read: Callable[[], T]) -> T:
        """Return the result of ``read``. Raises TimeoutError if the directory does not answer."""
        # A directory that hangs must not delay the saves by other methods.
        return self._in_time.call("", read, READ_TIMEOUT_S)

    def _last_request(self, job: int) -> _Request:
        """The last request that we wrote; an empty one if it cannot be read."""
        try:
            content = self._read_in_time(lambda: _read(self._directory / str(job) / "request"))
            return msgspec.json.decode(content, type=_Request)
        except (OSError, msgspec.DecodeError):
            return _Request(id="", verb="")

    def _status(self, job: int) -> _Status | None:
        """Return the status that the job's launcher wrote; None if it certainly wrote none.

        UnreadableError if we could not look. While a file server restarts, a job must not look as
        if it had no launcher, because we would report to its user that it cannot be saved.
        """
        path = self._directory / str(job) / "status.json"
        try:
            return msgspec.json.decode(self._read_in_time(lambda: _read(path)), type=_Status)
        except (FileNotFoundError, NotADirectoryError) as error:
            if not self._is_readable():
                raise self._unreadable(error) from error
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise self._unreadable(error) from error

    def _status_if_readable(self, job: int) -> _Status | None:
        try:
            return self._status(job)
        except UnreadableError:
            return None

    def _has_room(self) -> bool:
        """Whether a launcher could write its status. On a full disk all runs are silent."""
        try:
            disk = self._read_in_time(lambda: os.statvfs(self._directory))
        except OSError as error:
            raise self._unreadable(error) from error
        # Some file systems count no files.
        has_files = disk.f_files == 0 or disk.f_favail > 0
        return has_files and disk.f_bavail * disk.f_frsize >= STATUS_ROOM

    def _is_readable(self) -> bool:
        """Whether the directory of all jobs is there. It is not if its file system is not mounted,
        or if the server hangs.
        """
        try:
            return self._read_in_time(self._directory.is_dir)
        except OSError:
            return False

    def _unreadable(self, error: Exception) -> UnreadableError:
        return UnreadableError(f"{self._directory} cannot be read now: {reason_of(error)}")

    def _image_error(self, path: Path, error: OSError) -> CheckpointError:
        """Return the error about a file of an image. It is a fault of the image only if the file
        is certainly gone.
        """
        if isinstance(error, FileNotFoundError) and self._is_readable():
            return CheckpointError(f"{path}: {error.strerror}")
        return self._unreadable(error)

    def _files(self, image: Image) -> dict[str, tuple[int, str]]:
        path = Path(image.path) / "manifest.json"
        try:
            manifest = msgspec.json.decode(self._read_in_time(lambda: _read(path)), type=_Manifest)
        except OSError as error:
            raise self._image_error(path, error) from error
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{path}: {error}") from error
        origin = (manifest.job, manifest.attempt, manifest.number, manifest.method)
        if origin != (image.job, image.attempt, image.number, image.method):
            origin_text = "it is of job {}, run {}, save {} by {}".format(*origin)
            raise CheckpointError(
                f"{path}: {origin_text}, not save {image.number} of job {image.label}"
            )
        return manifest.files

    def _image(self, entry: _Listed) -> Image:
        """Convert an entry of the launcher's list."""
        return Image(
            job=entry.job,
            label=entry.label,
            attempt=entry.attempt,
            number=entry.number,
            method=entry.method,
            node=entry.node,
            taken=entry.taken,
            seconds=entry.seconds,
            size=entry.size,
            # The path on the head: nodes may mount the directory elsewhere.
            path=str(self._directory / str(entry.job) / "images" / str(entry.number)),
            uid=entry.uid,
            submitted=entry.submitted,
        )

    def _is_whole(self, image: Image) -> bool:
        try:
            sizes = {Path(image.path) / n: size for n, (size, _) in self._files(image).items()}
            return self._read_in_time(
                lambda: all(path.lstat().st_size == n for path, n in sizes.items())
            )
        except FileNotFoundError:
            return False
        except UnreadableError:
            raise
        except CheckpointError:
            return False
        except OSError as error:
            raise self._unreadable(error) from error


def _open(path: Path) -> int:
    """Open a regular file. Raises OSError for a link, or a pipe that would block the reader."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def _read(path: Path) -> bytes:
    with open(_open(path), "rb") as opened:
        return opened.read(_MAX_FILE_BYTES)


def _digest(path: Path, size: int, before_part: Callable[[], None]) -> str:
    """Return the SHA-256 of a file of ``size`` bytes. ``before_part`` is called before each part,
    and may raise TimeoutError.
    """
    # One byte more than ``size``, so that the digest of a longer file differs.
    sha, bytes_left = hashlib.sha256(), size + 1
    with open(_open(path), "rb", buffering=0) as opened:
        while bytes_left > 0 and (block := opened.read(min(_BLOCK_BYTES, bytes_left))):
            before_part()
            sha.update(block)
            bytes_left -= len(block)
    return sha.hexdigest()
