"""Keep a job's output over its runs, without loss or repetition, and without an option of the site.

slurmstepd truncates a job's output file at each start, before the script runs (slurm.conf(5),
JobFileAppend). So after each image we append the outputs' new data to copies that are root's. A
later run writes the copies back into its fresh file, whose inode slurmstepd keeps open. All files
that the job had open for writing are cut to their length at the image, because the job will write
the rest again. Data that other programs appended since, or wrote into a fresh file before we
restored the job's output, is kept in a file beside it. (CRIU does not check the length of files
that a job can only append to: should_check_size in criu/files-reg.c. We do not cut those.)

We access the user's files only with the user's rights on files.
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
from .site import RequestRefused

_COMPARED_BYTES = 1 << 20
"""How many bytes at a file's end we compare with the copy."""


def of_step(proc: Path = Path("/proc/self/fd")) -> list[str]:
    """Return the regular files behind our standard output and error, each once."""
    paths = []
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            path = os.readlink(proc / str(descriptor))
            if stat.S_ISREG(os.fstat(descriptor).st_mode) and path not in paths:
                paths.append(path)
    return paths


def keep(
    directory: Path, outputs: list[str], sizes: Mapping[str, int], caller: Caller, max_bytes: int
) -> None:
    """Extend the copies to the outputs' lengths at the image. RequestRefused for more than
    ``max_bytes`` of new data.
    """
    for index, path in enumerate(outputs):
        if path not in sizes:
            continue
        with _opened(path, os.O_RDONLY, caller) as source:
            max_bytes -= _extend(directory / str(index), source, sizes[path], max_bytes)


def give_back(
    directory: Path, outputs: list[str], written: Collection[OpenFile], caller: Caller, number: int
) -> list[str]:
    """Before a restore of image ``number``: restore the files to their state at the image.

    Return a sentence for each step. RequestRefused if data that must be cut cannot be kept.
    """
    steps = []
    for output in written:
        copy = directory / str(outputs.index(output.path)) if output.path in outputs else None
        with _opened(output.path, os.O_RDWR | (os.O_CREAT if copy else 0), caller) as file:
            length = os.fstat(file).st_size
            if copy is not None and length and not _is_ours(file, copy, min(length, output.size)):
                aside = _move_rest_aside(file, OpenFile(output.path, 0), caller, number)
                steps.append(f"{output.path}: {length} bytes of others in its place{aside}")
                length = os.fstat(file).st_size
            # Slurm truncates a job's output at each start, so the file is usually shorter than at
            # the image.
            if length < output.size and copy is not None:
                _fill(file, copy, output.size, caller)
                steps.append(f"{output.path}: {output.size} bytes given back, {length} were there")
            if length > output.size:
                # The copy has our own data as well. Without a copy, only a file opened to append
                # may have data of others.
                lose = _given_back(file, copy) if copy else not output.appends
                aside = _shorten(file, output, caller, number, lose=lose)
                steps.append(f"{output.path}: cut from {length} to {output.size} bytes{aside}")
    return steps


def cut_copies(directory: Path, outputs: list[str], sizes: Mapping[str, int]) -> None:
    """Before the first image of a run: cut the copies to the image from which the run continues.

    An earlier run may have written more. This run writes that part again, perhaps differently.
    """
    for index, path in enumerate(outputs):
        copy = directory / str(index)
        if path in sizes and copy.exists() and copy.stat().st_size > sizes[path]:
            os.truncate(copy, sizes[path])


def fork(
    directory: Path, target: Path, outputs: list[str], sizes: Mapping[str, int], max_bytes: int
) -> int:
    """Begin the copies of a new line with the bytes that the run was given back. Return the bytes
    of data written. RequestRefused for more than ``max_bytes``.
    """
    added = 0
    for index, path in enumerate(outputs):
        copy = directory / str(index)
        if sizes.get(path) and copy.exists():
            with files.held(copy, owners=(0,)) as source:
                size = min(sizes[path], os.fstat(source).st_size)
                added += _extend(target / str(index), source, size, max_bytes - added)
    return added


def clear(directory: Path, outputs: list[str], caller: Caller) -> list[str]:
    """Empty the job's output, as slurmstepd would, because the job starts over. Return a sentence
    for each step.

    The copies stay, for a node on which an image can be used.
    """
    steps = []
    for index, path in enumerate(outputs):
        copy = directory / str(index)
        with contextlib.suppress(RequestRefused), _opened(path, os.O_RDWR, caller) as file:
            length = os.fstat(file).st_size
            lose = _given_back(file, copy)
            aside = _shorten(file, OpenFile(path, 0), caller, 0, lose=lose) if length else ""
            if aside:
                steps.append(f"{path}: {length} bytes of earlier runs, or of others{aside}")
    return steps


def sizes(outputs: list[str], caller: Caller) -> dict[str, int]:
    """Return the outputs' present lengths (bytes)."""
    lengths = {}
    for path in outputs:
        with contextlib.suppress(RequestRefused), _opened(path, os.O_RDONLY, caller) as file:
            lengths[path] = os.fstat(file).st_size
    return lengths


def new(directory: Path, outputs: list[str], caller: Caller) -> int:
    """Return the bytes of the blocks that the outputs have and the copies lack."""
    blocks = 0
    for index, path in enumerate(outputs):
        with contextlib.suppress(RequestRefused, OSError):
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
            raise RequestRefused(f"{path}: {error.strerror}") from error
    try:
        yield file
    finally:
        os.close(file)


def _shorten(file: int, output: OpenFile, caller: Caller, number: int, *, lose: bool) -> str:
    """Cut the file to the image's bytes. Return where the rest is kept, or "" with ``lose``."""
    if not lose:
        return _move_rest_aside(file, output, caller, number)
    with as_user(caller):
        os.ftruncate(file, output.size)
    return ""


def _move_rest_aside(file: int, output: OpenFile, caller: Caller, number: int) -> str:
    """Move the bytes after the image's into a new file, and return where that is.

    Text appended during the copy is copied, too, until no more arrives. Text written
    between the last look and the cut is lost, because no system call does both.
    """
    with as_user(caller):
        path = target = None
        try:
            path, target = _fresh(f"{output.path}.cut-{caller.job}-{number}", file)
            copied_to = _copy_rest(file, target, output.size, output.size)
            os.fsync(target)  # before the last look, because it takes long
            _copy_rest(file, target, output.size, copied_to)
            os.ftruncate(file, output.size)
        except OSError as error:
            if path is not None:
                os.unlink(path)
            reason = f"what others may have appended to it cannot be kept: {error.strerror}"
            raise RequestRefused(f"{output.path}: {reason}") from error
        finally:
            if target is not None:
                os.close(target)
    return f", what was there is in {path}"


def _copy_rest(source: int, target: int, start: int, offset: int) -> int:
    """Copy from ``offset`` until the file stops growing; return the file's length. The byte at
    ``start`` is copied to offset 0.
    """
    while (end := os.fstat(source).st_size) > offset:
        files.copy(source, target, offset, end, shift=start)
        offset = end
    return offset


def _fresh(path: str, like: int) -> tuple[str, int]:
    """Create a file with that name, or the next free one, with the read permissions of ``like``."""
    flags = files.NEW | files.SAFE
    for name in (path, *(f"{path}.{again}" for again in range(1, 1000))):
        with contextlib.suppress(FileExistsError):
            target = os.open(name, flags, 0o600)
            # Readable for whoever may read the file that it is cut from, but not executable.
            os.fchmod(target, stat.S_IMODE(os.fstat(like).st_mode) & 0o666)
            return name, target
    raise FileExistsError(0, "too many such files", path)


def _given_back(file: int, copy: Path) -> bool:
    """Return whether the file contains only data that we wrote back from a copy."""
    if not copy.exists():
        return False
    with files.held(copy, owners=(0,)) as source:
        size = os.fstat(file).st_size
        is_same = size <= os.fstat(source).st_size and all(
            os.pread(file, stop - start, start) == os.pread(source, stop - start, start)
            for descriptor in (file, source)
            for start, stop in files.pieces(descriptor, 0, size)
        )
        return is_same and os.fstat(file).st_size == size  # and it has not grown since


def _is_ours(file: int, copy: Path, size: int) -> bool:
    """Return whether the file begins with the job's own output. Only the last bytes of that are
    compared.

    slurmstepd's message about the job, or another job's line, may have been written into the
    emptied file before our data.
    """
    if not copy.exists():
        return True  # without a copy we cannot tell
    with files.held(copy, owners=(0,)) as source:
        size = min(size, os.fstat(source).st_size)
        start = max(size - _COMPARED_BYTES, 0)
        return os.pread(file, size - start, start) == os.pread(source, size - start, start)


def _extend(copy: Path, source: int, size: int, max_bytes: int) -> int:
    """Extend the copy; return the bytes of data added."""
    with files.held(copy, os.O_RDWR | os.O_CREAT, owners=(0,)) as target:
        copied = min(os.fstat(target).st_size, size)
        # A longer copy has output from after this image.
        os.ftruncate(target, copied)
        try:
            added = files.copy(source, target, copied, size, max_bytes=max_bytes)
            os.fsync(target)
        except BaseException:  # partial data would take room until the next image
            os.ftruncate(target, copied)
            raise
        return added


def _fill(target: int, copy: Path, size: int, caller: Caller) -> None:
    with files.held(copy, owners=(0,)) as source, as_user(caller):
        os.ftruncate(target, 0)  # old data would show through the copy's holes
        files.copy(source, target, 0, size)
