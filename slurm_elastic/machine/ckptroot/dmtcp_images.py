"""The user's directory into which DMTCP writes its images (DMTCP 4.2.0).

DMTCP writes a file ckpt_NAME_ID.dmtcp for each process. Beside it, a directory ckpt_NAME_ID_files
has the open deleted files and the files mapped as shared. The coordinator writes
SCRIPT after all of these; only SCRIPT marks the end of a save. The user may put any file there, so
root copies only a bounded number of plain files.

Of a job of several nodes, each other node has a directory of its own there, by its number. Root's
image has the files of all nodes, those of another node with ``prefix`` before their names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from . import files
from .caller import Caller
from .rights import as_user
from .site import HelperSite, RequestRefused

SCRIPT = "dmtcp_restart_script.sh"
IMAGE = ".dmtcp"
_UNFINISHED = ".dmtcp.temp"
_BESIDE = "_files"
_INDEX = "beside.json"
"""In root's image: directory and name of each file ``beside-N``."""
_APPENDED = "appended.json"
"""In root's image: the files that the job only appends to."""
_STARTS = "starts.json"
"""In root's image: the commands on other nodes for which mpirun waits."""
_INDEX_BYTES = 16 << 20
_NAMED_SCRIPT = re.compile(r"dmtcp_restart_script_.+\.sh")
"""The file to which SCRIPT is a link. It has a line for each host: ``:: HOST :bg: IMAGE... : ssh``.
"""
_NODES = "nodes.json"
"""In root's image: the names of the job's nodes in the run in which the job started."""
_OTHERS = re.compile(r"n[1-9]\d*-")
_PROBE = "slurm-elastic-probe"
_MAX_FILES = 10_000
"""Of a directory into which DMTCP saves: one per process, and a few more."""


def prefix(node: int) -> str:
    """Return how the names of a node's files begin in root's image."""
    return f"n{node}-" if node else ""


def is_of_first(name: str) -> bool:
    """Return whether a file of root's image is of the job's first node."""
    return not _OTHERS.match(name)


class DmtcpImages:
    """The files that DMTCP saves of one job, at ``path``. The user may write there.

    ``node``: the number of the job's node that saves them.
    """

    def __init__(self, path: Path, caller: Caller, node: int = 0) -> None:
        self.path = path
        self._caller = caller
        self._prefix = prefix(node)

    def make(self) -> None:
        """Create the empty directory. RequestRefused if the user cannot create it."""
        self.discard()
        try:
            with as_user(self._caller):
                os.mkdir(self.path, 0o700)
        except OSError as error:
            raise RequestRefused(f"{self.path}: {error.strerror}") from error

    def discard(self) -> None:
        """Remove the directory with the user's rights."""
        # If the user prevents that, the rest stays in the user's own directory.
        with contextlib.suppress(OSError, RequestRefused), as_user(self._caller):
            files.remove(self.path, _MAX_FILES)

    def names(self) -> list[str]:
        """Return the names in the directory; [] if it does not exist."""
        try:
            with self._opened() as directory:
                return files.names(directory, _MAX_FILES)
        except OSError:
            return []

    def is_complete(self) -> bool:
        """Return whether the coordinator has marked the end of the save."""
        with contextlib.suppress(OSError), as_user(self._caller):
            # SCRIPT is a symbolic link. lstat does not follow it.
            self.path.joinpath(SCRIPT).lstat()
            return True
        return False

    def is_being_written(self) -> bool:
        """Return whether a process writes its image now. All of the job's processes stand still
        then.
        """
        return any(name.endswith(_UNFINISHED) for name in self.names())

    def count_of_set(self) -> int:
        """Return how many images the last save has on all nodes, by the coordinator's script."""
        name = next((n for n in self.names() if _NAMED_SCRIPT.fullmatch(n)), SCRIPT)
        with as_user(self._caller), contextlib.suppress(OSError):
            text = files.read(self.path / name, _INDEX_BYTES).decode(errors="replace")
            lines = (line for line in text.splitlines() if line.lstrip().startswith("::"))
            return sum(word.endswith(IMAGE) for line in lines for word in line.split())
        return 0

    def images(self) -> list[str]:
        """Return the paths of the images."""
        return [str(self.path / name) for name in self.names() if name.endswith(IMAGE)]

    def size(self) -> int:
        """Return the bytes of all images. An image that vanishes counts 0."""
        total = 0
        for path in self.images():
            with contextlib.suppress(OSError), as_user(self._caller):
                total += os.lstat(path).st_size
        return total

    def written(self) -> int:
        """Return the bytes of all files of a save, also of unfinished images."""
        total = 0
        for name in self.names():
            place = self.path / name
            with contextlib.suppress(OSError, RequestRefused), as_user(self._caller):
                total += os.lstat(place).st_size
                if name.endswith(_BESIDE):
                    with files.directory(place) as beside:
                        names = files.names(beside, _MAX_FILES)
                        total += sum(os.lstat(n, dir_fd=beside).st_size for n in names)
        return total

    def write_probe(self) -> None:
        """Write a file to the file system's server, and remove it. Waits if that stalls."""
        path = self.path / _PROBE
        # An error is an answer, too.
        with contextlib.suppress(OSError, RequestRefused), as_user(self._caller):
            path.unlink(missing_ok=True)
            with files.held(path, files.NEW) as descriptor:
                os.write(descriptor, b"\0")
                os.fsync(descriptor)
            path.unlink()

    def gather(self, image: Path, max_bytes: int) -> int:
        """Copy all files of the save into root's ``image``, at most ``max_bytes``; return the
        unused rest of ``max_bytes``.
        """
        with self._opened() as directory:
            names = files.names(directory, _MAX_FILES)
            if any(name.endswith(_UNFINISHED) for name in names):
                raise RequestRefused("dmtcp_command: an image is not whole")
            images = [name for name in names if name.endswith(IMAGE)]
            if not images:
                raise RequestRefused("dmtcp_command: no image was written")
            for name in images:
                target = image / f"{self._prefix}{name}"
                max_bytes -= self._copy(directory, name, target, max_bytes)
            return self._gather_beside(directory, names, image, max_bytes)

    def _gather_beside(self, directory: int, names: list[str], image: Path, max_bytes: int) -> int:
        index: list[tuple[str, str, int]] = []
        for place in (name for name in names if name.endswith(_BESIDE)):
            with self._opened(place, directory) as beside:
                for name in files.names(beside, _MAX_FILES - len(index)):
                    mode = os.stat(name, dir_fd=beside, follow_symlinks=False).st_mode
                    target = image / f"{self._prefix}beside-{len(index)}"
                    max_bytes -= self._copy(beside, name, target, max_bytes)
                    index.append((place, name, stat.S_IMODE(mode) & 0o777))
        if index:
            _write(image / f"{self._prefix}{_INDEX}", index)
        return max_bytes

    def _copy(self, directory: int, name: str, target: Path, max_bytes: int) -> int:
        with as_user(self._caller):
            source = files.opened(
                name, owners=(self._caller.uid,), max_bytes=max_bytes, dir_fd=directory
            )
        try:
            return files.copy_file(source, target, 0o640, max_bytes)
        finally:
            os.close(source)

    def put_back_files(self, image: Path) -> None:
        """Before a restart from root's verified ``image``: put the files into the directory, as the
        user's own, where dmtcp_restart looks for them.
        """
        self.make()
        try:
            content = files.read(image / f"{self._prefix}{_INDEX}", _INDEX_BYTES, owners=(0,))
        except FileNotFoundError:
            return
        try:
            with self._opened() as directory:
                for number, (place, name, mode) in enumerate(files.json_of(content)):
                    source = image / f"{self._prefix}beside-{number}"
                    self._put(directory, place, name, mode, source)
        except OSError as error:
            raise RequestRefused(f"{self.path}: {error.strerror}") from error

    def _put(self, directory: int, place: str, name: str, mode: int, source: Path) -> None:
        with as_user(self._caller), contextlib.suppress(FileExistsError):
            os.mkdir(place, 0o700, dir_fd=directory)
        with self._opened(place, directory) as beside, files.held(source, owners=(0,)) as content:
            with as_user(self._caller):
                target = files.opened(name, files.NEW, dir_fd=beside, mode=0o600)
            try:
                with as_user(self._caller):
                    files.copy(content, target, 0, os.fstat(content).st_size)
                    os.fchmod(target, mode)
            finally:
                os.close(target)

    @contextlib.contextmanager
    def _opened(self, name: str = "", dir_fd: int | None = None) -> Iterator[int]:
        """Yield a descriptor of the directory, or of ``name`` in the directory ``dir_fd``."""
        flags = os.O_RDONLY | os.O_DIRECTORY | files.SAFE
        with as_user(self._caller):
            directory = os.open(name or self.path, flags, dir_fd=dir_fd)
        try:
            yield directory
        finally:
            os.close(directory)


def library_digest(site: HelperSite) -> str:
    """Return the SHA-256 of DMTCP's libraries on this node, or of dmtcp_launch if they are not
    found.
    """
    sha, home = hashlib.sha256(), Path(os.path.realpath(site.dmtcp)).parent
    for place in (home / "lib" / "dmtcp", *home.glob("lib*/*/dmtcp"), home / "lib64" / "dmtcp"):
        libraries = sorted(place.glob("libdmtcp*.so"))
        for library in libraries:
            sha.update(library.name.encode() + library.read_bytes())
        if libraries:
            return sha.hexdigest()
    sha.update(Path(site.dmtcp, "dmtcp_launch").read_bytes())
    return sha.hexdigest()


def note_appended(image: Path, paths: list[str]) -> None:
    """Record in root's image the files that the job only appends to."""
    if paths:
        _write(image / _APPENDED, paths)


def appended(image: Path) -> list[str]:
    """Return the files that were recorded in a verified image."""
    with contextlib.suppress(FileNotFoundError):
        content = files.json_of(files.read(image / _APPENDED, _INDEX_BYTES, owners=(0,)))
        return [str(path) for path in content]
    return []


def note_starts(image: Path, starts: Mapping[str, int]) -> None:
    """Record in root's image the commands that mpirun has started on other nodes, by name."""
    if starts:
        _write(image / _STARTS, dict(starts))


def starts(image: Path) -> dict[str, int]:
    """Return the commands that were recorded in a verified image, with the numbers of their
    nodes.
    """
    with contextlib.suppress(FileNotFoundError):
        content = files.json_of(files.read(image / _STARTS, _INDEX_BYTES, owners=(0,)))
        return {str(name): int(node) for name, node in content.items()}
    return {}


def note_nodes(image: Path, names: list[str]) -> None:
    """Record in root's image the names by which the job knows its nodes, beginning with the first
    node.
    """
    _write(image / _NODES, names)


def nodes(image: Path) -> list[str]:
    """Return the names of nodes that were recorded in a verified image; [] if there are none."""
    with contextlib.suppress(FileNotFoundError):
        content = files.json_of(files.read(image / _NODES, _INDEX_BYTES, owners=(0,)))
        return [str(name) for name in content]
    return []


def _write(path: Path, content: object) -> None:
    with open(files.opened(path, files.NEW, mode=0o640), "wb") as file:
        file.write(json.dumps(content).encode())
