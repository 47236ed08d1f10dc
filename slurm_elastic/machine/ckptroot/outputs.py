"""Keeps a job's output over its runs, neither lost nor doubled, without any option of the site's.

slurmstepd truncates a job's output file at each start, before the script runs (slurm.conf(5),
JobFileAppend). So after each image we add what the outputs have gained to copies of root's; a later
run writes these back into its fresh file, whose inode slurmstepd keeps open. All files that the job
had open for writing are cut back to their length at the image, as the job will write the rest
again. What others have appended meanwhile, or written into a fresh file before we restored the
job's own output, is kept beside it. (CRIU does not mind the length of files that a job can only
append to: should_check_size in criu/files-reg.c. We do not cut those.)

Everything is done to the user's files with his rights on files only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from . import files
from .caller import Caller
from .images import OpenFile
from .rights import as_user
from .site import Refused

_END = 1 << 20
"""How many bytes at a file's end we compare to tell it from another."""


def of_step(proc: Path = Path("/proc/self/fd")) -> list[str]:
    """The regular files that our standard output and error are, each once."""
    found = []
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            path = os.readlink(proc / str(descriptor))
            if stat.S_ISREG(os.fstat(descriptor).st_mode) and path not in found:
                found.append(path)
    return found


def keep(
    directory: Path, outputs: list[str], sizes: Mapping[str, int], caller: Caller, most: int
) -> None:
    """Bring the copies up to the outputs' lengths at the image; Refused for more than ``most``
    bytes of new data.
    """
    for index, path in enumerate(outputs):
        if path not in sizes:
            continue
        with _opened(path, os.O_RDONLY, caller) as source:
            most -= _extend(directory / str(index), source, sizes[path], most)


def give_back(
    directory: Path, outputs: list[str], written: Collection[OpenFile], caller: Caller, number: int
) -> list[str]:
    """Before a restore of image ``number``, bring the files back to how they were at the image.
    Returns a sentence for each step. Refused if what is to be cut cannot be kept.
    """
    done = []
    for one in written:
        kept = directory / str(outputs.index(one.path)) if one.path in outputs else None
        with _opened(one.path, os.O_RDWR | (os.O_CREAT if kept else 0), caller) as file:
            found = os.fstat(file).st_size
            if kept is not None and found and not _is_ours(file, kept, min(found, one.size)):
                aside = _aside(file, OpenFile(one.path, 0), caller, number)
                done.append(f"{one.path}: {found} bytes of others in its place{aside}")
                found = os.fstat(file).st_size
            if found < one.size and kept is not None:
                _fill(file, kept, one.size, caller)
                done.append(f"{one.path}: {one.size} bytes given back, {found} were there")
            if found > one.size:
                lose = _given_back(file, kept) if kept else not one.appends
                aside = _shorten(file, one, caller, number, lose=lose)
                done.append(f"{one.path}: cut from {found} to {one.size} bytes{aside}")
    return done


def settle(directory: Path, outputs: list[str], sizes: Mapping[str, int]) -> None:
    """Before the first image of a run, cut the copies to what the image that it went on from knows:
    what an earlier run wrote after it came again, and maybe differently.
    """
    for index, path in enumerate(outputs):
        kept = directory / str(index)
        if path in sizes and kept.exists() and kept.stat().st_size > sizes[path]:
            os.truncate(kept, sizes[path])


def clear(directory: Path, outputs: list[str], caller: Caller) -> list[str]:
    """The job starts anew after all: empty its output, as slurmstepd made it. Returns a sentence
    for each step. The copies stay, for a node where an image can be used.
    """
    done = []
    for index, path in enumerate(outputs):
        kept = directory / str(index)
        with contextlib.suppress(Refused), _opened(path, os.O_RDWR, caller) as file:
            found = os.fstat(file).st_size
            lose = _given_back(file, kept)
            aside = _shorten(file, OpenFile(path, 0), caller, 0, lose=lose) if found else ""
            if aside:
                done.append(f"{path}: {found} bytes of earlier runs, or of others{aside}")
    return done


def sizes(outputs: list[str], caller: Caller) -> dict[str, int]:
    """The outputs' lengths now (bytes)."""
    found = {}
    for path in outputs:
        with contextlib.suppress(Refused), _opened(path, os.O_RDONLY, caller) as file:
            found[path] = os.fstat(file).st_size
    return found


def new(directory: Path, outputs: list[str], caller: Caller) -> int:
    """Bytes of the blocks that the outputs have and the copies do not."""
    blocks = 0
    for index, path in enumerate(outputs):
        with contextlib.suppress(Refused, OSError):
            with _opened(path, os.O_RDONLY, caller) as file:
                blocks += os.fstat(file).st_blocks
            blocks -= (directory / str(index)).lstat().st_blocks
    return max(blocks, 0) * 512


@contextlib.contextmanager
def _opened(path: str, flags: int, caller: Caller) -> Iterator[int]:
    with as_user(caller):
        try:
            file = files.opened(path, flags, mode=0o644)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error
    try:
        yield file
    finally:
        os.close(file)


def _shorten(file: int, one: OpenFile, caller: Caller, number: int, *, lose: bool) -> str:
    """Cut the file to the image's bytes; says where the rest is kept, unless that may be lost."""
    if not lose:
        return _aside(file, one, caller, number)
    with as_user(caller):
        os.ftruncate(file, one.size)
    return ""


def _aside(file: int, one: OpenFile, caller: Caller, number: int) -> str:
    """Move what comes after the image's bytes into a file of its own, and say where it is.

    Text that is appended meanwhile is copied, too, until no more comes. Only what is written in the
    instant between the last look and the cut is lost, as no call does both.
    """
    with as_user(caller):
        path = target = None
        try:
            path, target = _fresh(f"{one.path}.cut-{caller.job}-{number}", file)
            at = _copy_rest(file, target, one.size, one.size)
            os.fsync(target)  # takes long, so before the last look
            _copy_rest(file, target, one.size, at)
            os.ftruncate(file, one.size)
        except OSError as error:
            if path is not None:
                os.unlink(path)
            why = f"what others may have appended to it cannot be kept: {error.strerror}"
            raise Refused(f"{one.path}: {why}") from error
        finally:
            if target is not None:
                os.close(target)
    return f", what was there is in {path}"


def _copy_rest(source: int, target: int, start: int, at: int) -> int:
    """Copy from ``at`` on until the file grows no more; its length. ``start`` goes to 0."""
    while (end := os.fstat(source).st_size) > at:
        files.copy(source, target, at, end, shift=start)
        at = end
    return at


def _fresh(path: str, like: int) -> tuple[str, int]:
    """A new file with that name, or the next free one, that the same people may read."""
    flags = files.NEW | files.SAFE
    for name in (path, *(f"{path}.{again}" for again in range(1, 1000))):
        with contextlib.suppress(FileExistsError):
            target = os.open(name, flags, 0o600)
            os.fchmod(target, stat.S_IMODE(os.fstat(like).st_mode) & 0o666)
            return name, target
    raise FileExistsError(0, "too many such files", path)


def _given_back(file: int, kept: Path) -> bool:
    """Whether the file has nothing but what we gave back from a copy."""
    if not kept.exists():
        return False
    with files.held(kept, owners=(0,)) as source:
        size = os.fstat(file).st_size
        same = size <= os.fstat(source).st_size and all(
            os.pread(file, stop - at, at) == os.pread(source, stop - at, at)
            for one in (file, source)
            for at, stop in files.pieces(one, 0, size)
        )
        return same and os.fstat(file).st_size == size  # nor has anything come meanwhile


def _is_ours(file: int, kept: Path, size: int) -> bool:
    """Whether the file's first bytes are the job's own, judged by the last of them. slurmstepd's
    message about the job, or another job's line, may have come into an emptied file before us.
    """
    if not kept.exists():
        return True  # nothing is known of it
    with files.held(kept, owners=(0,)) as source:
        size = min(size, os.fstat(source).st_size)
        start = max(size - _END, 0)
        return os.pread(file, size - start, start) == os.pread(source, size - start, start)


def _extend(kept: Path, source: int, size: int, most: int) -> int:
    """Add to the copy; how many bytes of data."""
    with files.held(kept, os.O_RDWR | os.O_CREAT, owners=(0,)) as target:
        have = min(os.fstat(target).st_size, size)
        os.ftruncate(target, have)
        try:
            done = files.copy(source, target, have, size, most=most)
            os.fsync(target)
        except BaseException:  # what came would take room until the next image
            os.ftruncate(target, have)
            raise
        return done


def _fill(target: int, kept: Path, size: int, caller: Caller) -> None:
    with files.held(kept, owners=(0,)) as source, as_user(caller):
        os.ftruncate(target, 0)  # what would stand where the copy has holes
        files.copy(source, target, 0, size)
