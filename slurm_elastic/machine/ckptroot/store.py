"""A job's directory on the shared file system::

    DIRECTORY/CLUSTER/JOB/       root's, 0751, group of SlurmUser: users pass through, no more
      script                     the job's own script, the user's, 0500
      meta.json                  root's alone: whose it is and how it was started
      request                    SlurmUser writes here what it wants; we make the file
      status.json                what we answer, and the images: SlurmUser may read it
      keep/                      root's alone: what the job had written to its output
      images/NUMBER/             root's, 2750: SlurmUser may read them, to verify; nobody may write
    DIRECTORY/CLUSTER/.removed-JOB-...   what is being deleted

The request is an existing file that is written in place: a client of NFS sees the change when it
opens it (close-to-open), while a new file's name may stay unseen for half a minute.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from . import files
from . import manifest as manifests
from .caller import Caller
from .manifest import Manifest
from .rights import as_user, let_run
from .site import Refused, Site, trust

_MOST = 64 << 20
"""Bytes of the largest script; Slurm's own default is 4 MiB (slurm.conf(5), max_script_size)."""
_MARKER = b"\n#__SLURM_ELASTIC_SCRIPT__\n"
_NEW = ".new"
REMOVED = ".removed-"
"""How the name of a directory begins that is being deleted; the sweeper deletes leftovers."""
_META = 1 << 20
_REQUEST = 4096


@dataclass(frozen=True)
class Meta:
    """How the job was first started."""

    job: int
    label: str
    uid: int
    gid: int
    method: str
    outputs: list[str]


@dataclass(frozen=True)
class Request:
    """A request of the head: ``verb`` is checkpoint, release or remove; ``within`` is in seconds;
    ``closes``: close TCP connections in the image.
    """

    id: str
    verb: str
    stop: bool = False
    within: float = 0.0
    closes: bool = False


class Taken(Refused):
    """Another run has the directory for now; a run that has ended soon lets go of it."""


class Store:
    """The directory of one job, which only we make. Everything in it but the script is root's."""

    guarded_by: ClassVar = {"lock": "to change the directory, of all processes"}

    def __init__(self, site: Site, job: int) -> None:
        self.path = site.jobs / str(job)
        self.job = job
        self.site = site
        self._lock: int | None = None
        self.lines: list[str] = []
        self._known: list[dict[str, Any]] = []

    def open(self) -> None:
        """Make the directory if need be and lock it. Raises Refused if it is not root's, Taken if
        another run has it.
        """
        try:
            for path, mode in ((self.site.jobs, 0o755), (self.path, 0o751)):
                self._make(path, mode)
            trust(self.path, directory=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise Refused(f"{error.filename}: root may not write there ({error.strerror}):"
                          " the export squashes root (no_root_squash)") from error  # fmt: skip
        try:
            self._take(lock)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def _take(self, lock: int) -> None:
        """Lock it; Taken where that cannot be."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine, there = os.fstat(lock), (self.path / "lock").lstat()
        except BlockingIOError as error:
            raise Taken(f"job {self.job} is driven by another process already") from error
        except OSError as error:
            raise Taken(f"{self.path}/lock: {error.strerror}") from error
        # Its last run or the sweeper has just removed the directory: the lock means nothing then.
        if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
            raise Taken(f"{self.path}: just removed")

    def _make(self, path: Path, mode: int) -> None:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            found = path.lstat()
            if found.st_uid != 0:
                path.rmdir()
                raise Refused(f"{path}: made by root, it belongs to uid {found.st_uid}:"
                              " the export squashes root (no_root_squash)")  # fmt: skip
            self._give(path, mode)

    def close(self) -> None:
        """Let others take it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def begin(self, meta: Meta, script: bytes) -> None:
        """A job's first run: remove what an earlier job of this number has left."""
        for entry in self.path.iterdir():
            if entry.name != "lock":
                files.remove(entry)
        self._directory("images", 0o751)
        self._directory("keep", 0o700)
        self._script(script, meta)
        _write(self.path / "request", b"", 0o600, self.site.reader)
        self.replace("meta.json", json.dumps(asdict(meta)).encode(), 0o600)

    def meta(self) -> Meta | None:
        """What an earlier run noted; None if it noted nothing that makes sense. Raises OSError if
        it cannot be read now: we know nothing then, and may remove nothing.
        """
        try:
            return Meta(**files.json_of(files.read(self.path / "meta.json", _META, owners=(0,))))
        except (FileNotFoundError, ValueError, TypeError, Refused):
            return None

    def request(self) -> Request | None:
        """SlurmUser's last request; None if there is none, or none that can be read."""
        owners = (0, self.site.reader[0])
        try:
            values = files.json_of(files.read(self.path / "request", _REQUEST, owners=owners))
            return Request(
                id=str(values["id"]),
                verb=str(values["verb"]),
                stop=bool(values.get("stop", False)),
                within=float(values.get("within", 0.0)),
                closes=values.get("tcp") == "close",
            )
        except (OSError, Refused, ValueError, KeyError, TypeError, AttributeError):
            return None

    def say(self, line: str) -> None:
        """Keep a sentence for the head and for people; the status has the last ones."""
        self.lines = [*self.lines[-49:], f"{time.time():.3f} {line}"]

    def publish(self, state: str, **more: object) -> None:
        """Write ``status.json``."""
        values = {"state": state, **more, "images": self._listed(), "log": self.lines}
        self.replace("status.json", json.dumps(values).encode(), 0o640)

    def images(self) -> list[Path]:
        """The directories of complete images, newest first; none of them is verified yet."""
        try:
            names = os.listdir(self.path / "images")
        except OSError:
            return []
        numbers = sorted((int(name) for name in names if name.isdigit()), reverse=True)
        return [self.path / "images" / str(number) for number in numbers]

    def new_image(self) -> Path:
        """An empty directory for the next image. What a killed run left half done is removed."""
        images = self.path / "images"
        for name in os.listdir(images):
            if name.endswith(_NEW):
                files.remove(images / name)
        done = self.images()
        number = int(done[0].name) + 1 if done else 1
        path = images / f"{number}{_NEW}"
        path.mkdir(mode=0o700)
        self._give(path, 0o2750)
        return path

    def accept(self, path: Path, manifest: Manifest) -> Path:
        """The image is complete: seal it, name it, and delete those beyond the kept ones."""
        content = manifests.seal(manifest, self.site.key)
        _write(path / manifests.NAME, content, 0o640, (0, self.site.reader[1]))
        manifests.sync(path)
        final = path.with_name(str(manifest.number))
        # Its content is on the disk by now: a name without a suffix is a whole image's.
        path.rename(final)
        manifests.sync(final.parent)
        for old in self.images()[self.site.keep :]:
            self.drop_image(old)
        return final

    def drop_image(self, path: Path) -> None:
        """Remove an image that is of no use. If that fails, it only takes room."""
        try:
            files.remove(path)
        except (OSError, Refused) as error:
            self.say(f"image {path.name} stays: {error}")

    def remove(self) -> None:
        """Delete the whole directory, after renaming it to what is no job's name."""
        removed = self.path.with_name(f"{REMOVED}{self.job}-{secrets.token_hex(6)}")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(removed)
        # The lock goes first: on NFS a file that is open, and its directory, cannot be deleted.
        self.close()
        files.remove(removed)

    def replace(self, name: str, content: bytes, mode: int) -> None:
        """Write a file of root's in one step."""
        path = self.path / name
        new = self.path / f"{name}{_NEW}"
        new.unlink(missing_ok=True)
        _write(new, content, mode, (0, self.site.reader[1]))
        new.rename(path)

    def _listed(self) -> list[dict[str, Any]]:
        """The good images for the head, without the lists of their files; the last known ones if
        the directory cannot be read now.
        """
        if not (self.path / "images").is_dir():
            return self._known
        found = []
        for path in self.images():
            with contextlib.suppress(Refused):
                one = manifests.read(path, self.site.key)
                values = {k: v for k, v in asdict(one).items() if k not in ("files", "writing")}
                found.append({**values, "size": one.size})
        self._known = found
        return found

    def _directory(self, name: str, mode: int) -> None:
        path = self.path / name
        path.mkdir(mode=0o700)
        self._give(path, mode)

    def _give(self, path: Path, mode: int) -> None:
        os.chown(path, 0, self.site.reader[1], follow_symlinks=False)
        path.chmod(mode)

    def _script(self, script: bytes, meta: Meta) -> None:
        """Write the script so that its user can run it but not change it, where the file system can
        do that.
        """
        _write(self.path / "script", script, 0o500, (0, 0))
        with files.held(self.path / "script", owners=(0,)) as descriptor:
            # A file of his own he could make as long as he likes: it is his only where there is no
            # other way.
            if not let_run(descriptor, meta.uid):
                os.fchown(descriptor, meta.uid, meta.gid)


def read_script(caller: Caller, path: str) -> bytes:
    """The job's own script, taken out of the one that Slurm started; read with the user's rights
    only.
    """
    # His group's, too: slurmd's copy lies in a directory that the job's group may enter.
    with as_user(caller):
        try:
            content = files.read(path, _MOST)
        except OSError as error:
            raise Refused(f"the script cannot be read: {error.strerror}") from error
    _, marker, script = content.partition(_MARKER)
    if not marker:
        raise Refused("the script has no mark of the launcher")
    return script


def _write(path: Path, content: bytes, mode: int, owner: tuple[int, int]) -> None:
    descriptor = files.opened(path, files.NEW)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
