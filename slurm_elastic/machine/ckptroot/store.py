"""A job's directory on the shared file system::

    DIRECTORY/CLUSTER/JOB/       root's, 0751, group of SlurmUser: users may only pass through
      script                     the job's own script, the user's, 0500
      meta.json                  root's alone: the job's owner and how it was started
      request                    we create it, SlurmUser writes its requests into it
      run                        root's alone: the token of the run that owns the directory
      status.json                our answers, and the images: SlurmUser may read it
      keep/, keep-LINE/          root's alone: copies of the job's outputs (``lines.py``)
      images/NUMBER/             root's, 2750: SlurmUser may read them to verify; no user may write
    DIRECTORY/CLUSTER/.removed-JOB-...   a directory during its deletion

``request`` and ``run`` are existing files that are written in place. A client of NFS sees the
change when it opens the file (close-to-open), but may not see the name of a new file for half a
minute.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from . import files, lines
from . import manifest as manifests
from .caller import Caller
from .identity import JobKey, RunKey, script_digest
from .image_wait import RunEnded
from .manifest import ImageManifest
from .rights import as_user, let_run
from .site import HelperSite, RequestRefused, trust

_MAX_SCRIPT_BYTES = 64 << 20
"""Slurm's own default is 4 MiB (slurm.conf(5), max_script_size)."""
_MARKER = b"\n#__SLURM_ELASTIC_SCRIPT__\n"
_NEW = ".new"
REMOVED = ".removed-"
"""Prefix of the names of directories during their deletion. The sweeper deletes leftovers."""
_MAX_META_BYTES = 1 << 20
_MAX_REQUEST_BYTES = 4096


@dataclass(frozen=True)
class Meta:
    """How the job was first started. ``script``: the digest of the batch script."""

    job: int
    label: str
    uid: int
    gid: int
    method: str
    outputs: list[str]
    script: str = ""

    def key(self, cluster: str) -> JobKey:
        """Return the identity of the job."""
        return JobKey(cluster, self.job, self.uid, self.gid, self.script)


@dataclass(frozen=True)
class HeadRequest:
    """A request of the head.

    ``verb``: checkpoint, hold (a held job stays held while its image is verified), release, remove,
    or forget (the next run uses no image of the run ``attempt``, for this ``reason``). ``stop``:
    stop the job afterwards. ``within``: seconds until the deadline. ``closes``: close TCP
    connections in the image. ``run``: the token of the run that the head has read from our status;
    "" if the head does not say.
    """

    id: str
    verb: str
    stop: bool = False
    within: float = 0.0
    closes: bool = False
    run: str = ""
    attempt: int = -1
    reason: str = ""


class Replaced(RunEnded):
    """Another run owns the directory. So Slurm has started the job again since our run."""


class Taken(RequestRefused):
    """Another run has the directory. It releases the directory soon if it has ended."""


class JobStore:
    """The directory of one job, which only this program creates. All its files except the script
    are root's.
    """

    guarded_by: ClassVar = {"lock": "to change the directory, of all processes"}

    def __init__(self, site: HelperSite, job: int) -> None:
        self.path = site.jobs / str(job)
        self.job = job
        self.site = site
        self.run: RunKey | None = None
        self._lock: int | None = None
        self.lines: list[str] = []
        self._last_listed: list[dict[str, Any]] = []

    def open(self) -> None:
        """Create the directory if necessary and lock it. RequestRefused if it is not root's, Taken
        if another run has it.
        """
        try:
            for path, mode in ((self.site.jobs, 0o755), (self.path, 0o751)):
                self._make_directory(path, mode)
            trust(self.path, directory=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise RequestRefused(f"{error.filename}: root may not write there ({error.strerror}):"
                          " the export squashes root (no_root_squash)") from error  # fmt: skip
        try:
            self._take(lock)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def _take(self, lock: int) -> None:
        """Lock the directory. Raise Taken if another run has it."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked, present = os.fstat(lock), (self.path / "lock").lstat()
        except BlockingIOError as error:
            raise Taken(f"job {self.job} is driven by another process already") from error
        except OSError as error:
            raise Taken(f"{self.path}/lock: {error.strerror}") from error
        # Its last run or the sweeper has just removed the directory: then the lock protects
        # nothing.
        if (locked.st_dev, locked.st_ino) != (present.st_dev, present.st_ino):
            raise Taken(f"{self.path}: just removed")

    def _make_directory(self, path: Path, mode: int) -> None:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            status = path.lstat()
            if status.st_uid != 0:
                path.rmdir()
                raise RequestRefused(f"{path}: made by root, it belongs to uid {status.st_uid}:"
                              " the export squashes root (no_root_squash)")  # fmt: skip
            self._set_owner(path, mode)

    def close(self) -> None:
        """Release the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def claim(self, attempt: int) -> None:
        """Record this run as the directory's owner, before anything in it is changed. An earlier
        run may have lost the lock without noticing (NFS, after the client's lease). It then
        changes nothing more.
        """
        run = RunKey(self.job, attempt)
        with files.held(self.path / "run", os.O_RDWR | os.O_CREAT, owners=(0,)) as descriptor:
            os.pwrite(descriptor, run.encoded(), 0)
            os.fsync(descriptor)
        self.run = run

    def require_ours(self) -> None:
        """Call this right before each effect on the directory. Replaced if another run owns it.
        OSError if that cannot be read now: then we do not know.
        """
        this_run = b"" if self.run is None else self.run.encoded()
        owner = files.read(self.path / "run", _MAX_REQUEST_BYTES, owners=(0,))
        if owner == this_run:
            return
        if len(owner) == len(this_run):
            raise Replaced(f"Slurm has started another run of job {self.job} since")
        # Another run may be writing it.
        raise OSError(errno.EAGAIN, "not whole", str(self.path / "run"))

    def begin(self, meta: Meta, script: bytes) -> None:
        """After ``claim``, prepare a job's first run: remove the files of an earlier job with this
        id.
        """
        for entry in self.path.iterdir():
            if entry.name not in ("lock", "run"):
                files.remove(entry)
        self._make_subdirectory("images", 0o751)
        self._make_subdirectory("keep", 0o700)
        self._write_script(script, meta)
        _write(self.path / "request", b"", 0o600, self.site.reader)
        self.replace("meta.json", json.dumps(asdict(meta)).encode(), 0o600)

    def meta(self) -> Meta | None:
        """Return the data of an earlier run, or None if there is none, or it is invalid.

        OSError if it cannot be read now. Then we know nothing, and may remove nothing.
        """
        try:
            return Meta(
                **files.json_of(files.read(self.path / "meta.json", _MAX_META_BYTES, owners=(0,)))
            )
        except (FileNotFoundError, ValueError, TypeError, RequestRefused):
            return None

    def request(self) -> HeadRequest | None:
        """Return SlurmUser's last request, or None if there is none, or it cannot be read."""
        owners = (0, self.site.reader[0])
        try:
            values = files.json_of(
                files.read(self.path / "request", _MAX_REQUEST_BYTES, owners=owners)
            )
            return HeadRequest(
                id=str(values["id"]),
                verb=str(values["verb"]),
                stop=bool(values.get("stop", False)),
                within=float(values.get("within", 0.0)),
                closes=values.get("tcp") == "close",
                run=str(values.get("run", "")),
                attempt=int(values.get("attempt", -1)),
                reason=str(values.get("reason", "")),
            )
        except (OSError, RequestRefused, ValueError, KeyError, TypeError, AttributeError):
            return None

    def add_log_line(self, line: str) -> None:
        """Store a sentence for the head and for people. The status contains the last 50."""
        self.lines = [*self.lines[-49:], f"{time.time():.3f} {line}"]

    def publish(self, state: str, **fields: object) -> None:
        """Write ``status.json``."""
        self.require_ours()
        run = "" if self.run is None else self.run.token
        values = {
            "state": state,
            "run": run,
            **fields,
            "images": self._list_images(),
            "log": self.lines,
        }
        self.replace("status.json", json.dumps(values).encode(), 0o640)

    def images(self) -> list[Path]:
        """Return the directories of complete images, newest first. They are not verified yet.

        OSError if they cannot be listed now: then we do not know that there are none.
        """
        try:
            names = os.listdir(self.path / "images")
        except FileNotFoundError:
            return []
        numbers = sorted((int(name) for name in names if name.isdigit()), reverse=True)
        return [self.path / "images" / str(number) for number in numbers]

    def new_image(self) -> Path:
        """Create an empty directory for the next image. Remove incomplete images of killed runs."""
        self.require_ours()
        images = self.path / "images"
        for name in os.listdir(images):
            if name.endswith(_NEW):
                files.remove(images / name)
        complete = self.images()
        number = int(complete[0].name) + 1 if complete else 1
        path = images / f"{number}{_NEW}"
        path.mkdir(mode=0o700)
        self._set_owner(path, 0o2750)
        return path

    def accept(self, path: Path, manifest: ImageManifest) -> Path:
        """Seal the complete image, give it its name, and delete the oldest images beyond
        ``keep``.
        """
        content = manifests.seal(manifest, self.site.key)
        _write(path / manifests.NAME, content, 0o640, (0, self.site.reader[1]))
        manifests.sync(path)
        final = path.with_name(str(manifest.number))
        # Rename only after its content is on the disk: a name without a suffix marks a complete
        # image.
        self.require_ours()
        path.rename(final)
        manifests.sync(final.parent)
        self.tried_nodes([])
        with contextlib.suppress(OSError):  # they only take room
            self._drop_unneeded()
        return final

    def _drop_unneeded(self) -> None:
        """Remove the images, and the copies of outputs, that the newest image replaces."""
        images = {image.number: image for image in self.manifests()}
        needed = lines.needed(images, self.site.keep)
        for index, old in enumerate(self.images()):
            is_unreadable = int(old.name) not in images and index < self.site.keep
            if int(old.name) not in needed and not is_unreadable:
                self.drop_image(old)
        self.drop_unused_copies()

    def tried_nodes(self, nodes: Sequence[str] | None = None) -> list[str]:
        """Return the nodes on which the newest image could not be used; set them to ``nodes``."""
        path = self.path / "unfit.json"
        with contextlib.suppress(OSError, ValueError, RequestRefused):
            if nodes is not None:
                self.require_ours()
                self.replace(path.name, json.dumps(list(nodes)).encode(), 0o600)
            names = files.json_of(files.read(path, _MAX_META_BYTES, owners=(0,)))
            return [str(name) for name in names] if isinstance(names, list) else []
        return []

    def manifests(self) -> list[ImageManifest]:
        """Return the valid manifests of the images, newest first."""
        valid = []
        for path in self.images():
            with contextlib.suppress(RequestRefused):
                valid.append(manifests.read(path, self.site.key))
        return valid

    def make_copies(self, line: int) -> Path:
        """Create the directory for the copies of a new line's outputs."""
        path = lines.copies(self.path, line)
        files.remove(path)  # of a killed run
        self._make_subdirectory(path.name, 0o700)
        return path

    def drop_unused_copies(self) -> None:
        """Remove the copies of lines without an image. If that fails, they only take room."""
        try:
            images = self.manifests()
            if len(images) < len(self.images()):
                return  # it is unknown which copies the others need
            used = {lines.copies(self.path, image.line).name for image in images} or {"keep"}
            for path in self.path.glob("keep*"):
                if path.name not in used:
                    files.remove(path)
        except (OSError, RequestRefused) as error:
            self.add_log_line(f"copies of outputs stay: {error}")

    def drop_image(self, path: Path) -> None:
        """Remove a useless image. If that fails, it only takes room."""
        try:
            files.remove(path)
        except (OSError, RequestRefused) as error:
            self.add_log_line(f"image {path.name} stays: {error}")

    def remove(self) -> None:
        """Delete the whole directory. First rename it, so that it is no job's name.

        A run may only delete its own; the sweeper asks Slurm about the job before.
        """
        removed = self.path.with_name(f"{REMOVED}{self.job}-{secrets.token_hex(6)}")
        with contextlib.suppress(FileNotFoundError):
            if self.run is not None:
                self.require_ours()
            self.path.rename(removed)
        # Close the lock first: on NFS an open file, and its directory, cannot be deleted.
        self.close()
        files.remove(removed)

    def replace(self, name: str, content: bytes, mode: int) -> None:
        """Write a file of root's atomically."""
        path = self.path / name
        new = self.path / f"{name}{_NEW}"
        new.unlink(missing_ok=True)  # of a killed run
        _write(new, content, mode, (0, self.site.reader[1]))
        new.rename(path)

    def _list_images(self) -> list[dict[str, Any]]:
        """Return the valid images for the head, without their lists of files.

        If the directory cannot be read now, return the last known images.
        """
        if not (self.path / "images").is_dir():
            return self._last_listed
        images = []
        for manifest in self.manifests():
            values = {k: v for k, v in asdict(manifest).items() if k not in ("files", "writing")}
            images.append({**values, "size": manifest.size})
        self._last_listed = images
        return images

    def _make_subdirectory(self, name: str, mode: int) -> None:
        path = self.path / name
        path.mkdir(mode=0o700)
        self._set_owner(path, mode)

    def _set_owner(self, path: Path, mode: int) -> None:
        os.chown(path, 0, self.site.reader[1], follow_symlinks=False)
        path.chmod(mode)

    def _write_script(self, script: bytes, meta: Meta) -> None:
        """Write the script so that its user can run it but not change it, if the file system
        supports that.
        """
        _write(self.path / "script", script, 0o500, (0, 0))
        with files.held(self.path / "script", owners=(0,)) as descriptor:
            # The user could make a file of his own arbitrarily long. So give him the file only if
            # there is no other way.
            if not let_run(descriptor, meta.uid):
                os.fchown(descriptor, meta.uid, meta.gid)


def read_script(caller: Caller, path: str) -> tuple[bytes, str]:
    """Return the job's own script, extracted from the launcher's script that Slurm started, and
    the digest of the whole. Read with the user's rights.
    """
    # The rights include the job's group, which may enter the directory of slurmd's copy.
    with as_user(caller):
        try:
            content = files.read(path, _MAX_SCRIPT_BYTES)
        except OSError as error:
            raise RequestRefused(f"the script cannot be read: {error.strerror}") from error
    _, marker, script = content.partition(_MARKER)
    if not marker:
        raise RequestRefused("the script has no mark of the launcher")
    return script, script_digest(content)


def _write(path: Path, content: bytes, mode: int, owner: tuple[int, int]) -> None:
    descriptor = files.opened(path, files.NEW)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
