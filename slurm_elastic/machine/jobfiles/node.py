"""The end on the machine. It starts as root, makes the job's directory, and becomes the job's user.

For each directory it records the files as they came, so that only changed files go back, and the
jobs that use the directory. The copy back of the last of these jobs removes the files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from .identity import Identity, become
from .marks import check_different, is_in, marks_of, shared_directories, unmarked_directories
from .owed import Owed
from .places import make_place
from .tree import Tree, sample, stamp
from .wire import Channel, CopyError, Message

STATE = "/var/lib/slurm-elastic-node/files"
"""A directory for each uid, with a file for each copied directory."""
_UNREAD_NAMED = 50
"""Files in one message, which is a line of bounded length."""
END_WAIT_S = 240.0
"""How long the copy back waits for the end of a job's processes."""


def run(identity: Identity, channel: Channel) -> None:
    """Serve one copy. ``identity`` is slurm-elasticd's; what ``channel`` brings comes from a
    process with the rights of the user, so root must not believe it.
    """
    os.umask(0o022)  # what root makes above a user's directory must let the user through
    header = {**channel.receive(), "do": identity.do}
    if header["do"] == "back":
        _wait(lambda: not has_steps(identity.job), END_WAIT_S, channel)
    if header["do"] == "out":
        for path, owned in header["places"]:
            make_place(str(path), owned, identity.uid, identity.gid)
    # The last steps that need root. After ``become`` nothing that the head sends can reach the
    # files of other users.
    place = _state_directory(identity.uid, identity.gid)
    owed = Owed(identity)
    become(identity)
    header["shared"] = shared_directories(marks_of(header))
    if header["do"] == "outputs":
        channel.send(shared=sorted(header["shared"]))
        _send_outputs(header, channel)
        channel.send(t="end")
        channel.receive()
        channel.send(notes=[])
        return
    with _Book(place, str(header["directory"]), channel, identity) as book:
        if header["do"] == "out":
            _take_in(header, book, channel)
            owed.set(is_owed=True)
        else:
            _give_back(header, book, channel)
            owed.set(is_owed=False)


def _tree(header: Message, directory: str) -> Tree:
    return Tree(directory, header["exclude"], one_file_system=True)


def has_steps(job: int) -> bool:
    """Whether a slurmstepd of the job runs on this machine."""
    title, host = f"slurmstepd: [{job}.".encode(), _host_of("self")
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            # The host, because containers on this machine may be nodes of their own.
            if (
                entry.name.isdecimal()
                and (entry / "cmdline").read_bytes().startswith(title)
                and _is_slurmstepd(entry)
                and _host_of(entry.name) == host
            ):
                return True
    return False


def _is_slurmstepd(process: Path) -> bool:
    """Whether root has started the program: everybody may give a process its title."""
    # Debian's program is slurmstepd-wlm. The real user counts, because slurmstepd sometimes sets
    # its effective uid to the job's user.
    return (
        "slurmstepd" in os.path.basename(os.readlink(process / "exe"))
        and re.search(rb"^Uid:\t0\t", (process / "status").read_bytes(), re.MULTILINE) is not None
    )


def _host_of(pid: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/uts")


def _wait(is_over: Callable[[], bool], timeout: float, channel: Channel) -> bool:
    """Wait for ``is_over``, and send signs of life until then. False after ``timeout`` seconds."""
    until = time.monotonic() + timeout
    while not is_over():
        if time.monotonic() >= until:
            return False
        channel.beat()
        time.sleep(0.2)
    return True


def _state_directory(uid: int, gid: int) -> str:
    os.makedirs(STATE, 0o755, exist_ok=True)
    place = f"{STATE}/{uid}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, 0o700)
        os.chown(place, uid, gid)
    return place


class _Book:
    """The record of one directory. It is a context, because only one copy at a time may use it.

    ``base``: by path, the stamps of a file on the head and here, or the target of a link.
    ``runs``: the runs of jobs that use the directory, with the times of their orders. ``own``: by
    path, the stamp of a file that the machine had before the first copy, or None for a directory or
    link. Only the machine's owner removes these.
    """

    guarded_by: ClassVar[dict[str, str]] = {"_lock": "to copy the files of one directory"}

    def __init__(self, place: str, directory: str, channel: Channel, identity: Identity) -> None:
        self._path = Path(place, hashlib.sha256(os.fsencode(directory)).hexdigest()[:32] + ".json")
        self._channel, self.directory = channel, directory
        self.base: dict[str, Any] = {}
        self.own: dict[str, list[int] | None] = {}
        self.runs: dict[str, int] = {}
        self._identity = identity
        self.is_new = True

    def __enter__(self) -> _Book:
        self._lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        if not _wait(self._locked, END_WAIT_S, self._channel):
            raise CopyError(f"{self.directory}: another copy has used it for too long")
        with contextlib.suppress(FileNotFoundError, ValueError):
            content = json.loads(self._path.read_text())
            self.base, self.own = content["base"], content["own"]
            self.runs = self._counting(content["runs"])
            self.is_new = False
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def save(self) -> None:
        """Write the record to its file."""
        draft = self._path.with_suffix(".new")
        content = {
            "directory": self.directory, "base": self.base, "own": self.own, "runs": self.runs
        }  # fmt: skip
        draft.write_text(json.dumps(content))
        # With half a record all files would count as changed, and would be sent back.
        os.replace(draft, self._path)

    def remove(self) -> None:
        """Forget the directory."""
        self._path.unlink(missing_ok=True)

    def has_neighbours(self) -> bool:
        """Whether another run uses a directory above or below this one."""
        for path in self._path.parent.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                content = json.loads(path.read_text())
                one, other = f"{content['directory']}/", f"{self.directory}/"
                nested = one != other and (one.startswith(other) or other.startswith(one))
                if nested and self._counting(content["runs"]):
                    return True
        return False

    def _counting(self, runs: Mapping[str, int]) -> dict[str, int]:
        # The head may have given a run up: then no copy back comes for it.
        return {run: time for run, time in runs.items() if self._identity.counts(run, time)}

    @property
    def has_run(self) -> bool:
        """Whether the files of this copy's run have come: a directory that both ends share is not
        recorded.
        """
        return self._identity.run in self.runs

    def begin(self) -> None:
        """Record the run of this copy."""
        self.runs[self._identity.run] = self._identity.made_at

    def end(self) -> None:
        """Forget the run of this copy: its files are back."""
        self.runs.pop(self._identity.run, None)

    @property
    def has_others(self) -> bool:
        """Whether other runs use the directory."""
        return bool(self.runs.keys() - {self._identity.run})

    def base_of(self, path: str) -> list[int] | str | None:
        """The head's state of the path: the stamp of a file, the target of a link, or None."""
        entry = self.base.get(path)
        base: list[int] | str | None = entry["head"] if isinstance(entry, dict) else entry
        return base

    def changed(self, path: str, status: os.stat_result) -> bool:
        """Whether the file has changed since it came. True if a job has made it."""
        known = self.base.get(path)
        here = known["here"] if isinstance(known, dict) else self.own.get(path)
        return bool(here != stamp(status))


def _check_different(header: Message, book: _Book) -> None:
    mark = marks_of(header).get(book.directory)
    if mark is not None:
        check_different(book.directory, mark)


def _take_in(header: Message, book: _Book, channel: Channel) -> None:
    channel.send(shared=sorted(header["shared"]))
    if book.directory in header["shared"]:
        channel.send(end=True)
        channel.receive()
        channel.send(done=True, notes=[])
        return
    _check_different(header, book)
    tree = _tree(header, book.directory)
    # If no other run has changed a file, a run that was given up has: the head's file counts.
    for path, status in tree.entries():
        channel.beat()
        is_file = stat.S_ISREG(status.st_mode)
        if book.is_new:
            book.own[path] = stamp(status) if is_file else None
        if is_file:
            is_changed = path in book.base and book.changed(path, status)
            keep = is_changed and book.has_others
            if is_changed and not keep:
                tree.note(
                    path, "a job that was given up has changed it here: the head's file replaces it"
                )
            channel.send(p=path, at=stamp(status), keep=keep)
    # If this copy fails, the next one must not take its files for the machine's own.
    book.save()
    channel.send(end=True)
    while (message := channel.receive())["t"] != "end":
        path = str(message["p"])
        try:
            _take_entry(tree, path, message, book, channel)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            tree.note_mount(error)
    book.begin()
    book.save()
    channel.send(done=True, notes=tree.notes)


def _take_entry(tree: Tree, path: str, message: Message, book: _Book, channel: Channel) -> None:
    if message["t"] == "d":
        tree.make_directory(path, int(message["mode"]))
        return
    if message["t"] == "l":
        tree.write_link(path, message["to"])
        book.base[path] = message["to"]
    else:
        _take_file(tree, path, message, book, channel)
    if path in book.base:
        book.own.pop(path, None)


def _take_file(tree: Tree, path: str, message: Message, book: _Book, channel: Channel) -> None:
    if message["content"]:
        with channel.content() as blocks:
            tree.write(path, message, blocks, sync=False)
    status = tree.status(path)
    if status is not None and not message["keep"]:
        book.base[path] = _known([message["s"], message["m"]], status)


def _known(head_stamp: list[int], status: os.stat_result) -> dict[str, Any]:
    return {"head": head_stamp, "here": stamp(status), "mode": status.st_mode & 0o777}


def _give_back(header: Message, book: _Book, channel: Channel) -> None:
    channel.send(shared=sorted(header["shared"]))
    # The outputs first: if the machine is lost before the rest is copied, they are worth most.
    _send_outputs({**header, "present": []}, channel)
    tree: Tree | None = None
    # Send and remove only files that have come here for a run. Without a record, all files of
    # the directory would be taken for the job's.
    if book.has_run and book.directory not in header["shared"]:
        _check_different(header, book)
        with contextlib.suppress(FileNotFoundError):  # the job may have removed it
            tree = _tree(header, book.directory)
    unread: list[str] = []
    job_paths = [] if tree is None else _send_changes(tree, header, book, channel, unread)
    channel.send(t="end", unread=unread)
    written: Message = {}
    while "done" not in (message := channel.receive()):
        written |= message["written"]
    notes = [] if tree is None else tree.notes
    book.end()
    for path, head_stamp in written.items():
        channel.beat()
        if tree is not None and (status := tree.status(path)) is not None:
            book.base[path] = _known(head_stamp, status)
    _remove_outputs(header)
    # Another job may still use these files, in this directory or in one above or below it.
    if book.runs or tree is None or book.has_neighbours():
        book.save()
    else:
        _clean(tree, job_paths, book, channel)
    channel.send(bye=True, notes=notes)


def _send_changes(
    tree: Tree, header: Message, book: _Book, channel: Channel, unread: list[str]
) -> list[tuple[str, bool]]:
    """Send the changed files. Return all paths that came or that a job has made, each with whether
    it is a directory. ``unread`` gets the changed files that could not be read.
    """
    outputs = {os.path.relpath(path, book.directory) for path in header["outputs"]}
    seen: list[tuple[str, bool]] = []
    for path, status in tree.entries():
        channel.beat()
        if path in outputs:
            continue
        if path not in book.own:
            seen.append((path, stat.S_ISDIR(status.st_mode)))
        try:
            _send_change(tree, path, status, book, channel)
        except FileNotFoundError as error:
            tree.note(path, error)
        except PermissionError as error:
            if len(unread) < _UNREAD_NAMED:
                unread.append(f"{path}: {error.strerror}")
    return seen


def _send_change(
    tree: Tree, path: str, status: os.stat_result, book: _Book, channel: Channel
) -> None:
    if stat.S_ISDIR(status.st_mode):
        channel.send(t="d", p=path, mode=status.st_mode)
    elif stat.S_ISLNK(status.st_mode):
        target = tree.link_target(path)
        if target != book.base.get(path) and path not in book.own:
            channel.send(t="l", p=path, to=target, base=book.base_of(path))
    elif book.changed(path, status):
        _send_file(tree, path, book, channel)
    elif (entry := book.base.get(path)) and entry["mode"] != status.st_mode & 0o777:
        channel.send(t="m", p=path, mode=status.st_mode, base=entry["head"])


def _send_file(tree: Tree, path: str, book: _Book, channel: Channel) -> None:
    descriptor = tree.open(path)
    try:
        status = os.fstat(descriptor)
        channel.send(t="f", p=path, s=status.st_size, m=status.st_mtime_ns, mode=status.st_mode,
                     base=book.base_of(path))  # fmt: skip
        channel.send_content(descriptor)
    finally:
        os.close(descriptor)


def _send_outputs(header: Message, channel: Channel) -> None:
    """Send the outputs whole, or only from the end of the head's part on.

    ``present``: for each output the size and the sample of the head's part; empty for the last
    copy.
    """
    present: Sequence[tuple[int, str]] = header["present"]
    for number, path in enumerate(header["outputs"]):
        if is_in(path, header["shared"]):
            continue
        try:
            # O_NONBLOCK: the output may be a pipe, whose open would wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # the job has not begun, or its output is no file
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                size, digest = present[number] if present else (0, "")
                is_grown = size <= status.st_size and sample(descriptor, 0, size) == digest
                begin = size if is_grown else 0
                os.lseek(descriptor, begin, os.SEEK_SET)
                channel.send(t="o", i=number, begin=begin)
                channel.send_content(descriptor)
        finally:
            os.close(descriptor)


def _remove_outputs(header: Message) -> None:
    # An output in a directory that may be the head's stays: it may be the only copy.
    kept = unmarked_directories(marks_of(header)) | set(header["shared"])
    for path in header["outputs"]:
        if is_in(path, kept):
            continue
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.lstat(path).st_mode):
                os.unlink(path)


def _clean(tree: Tree, seen: Sequence[tuple[str, bool]], book: _Book, channel: Channel) -> None:
    """Remove the files, because no other job uses the directory."""
    # Backwards, because a directory comes before its content and can only be removed when empty.
    for path, is_directory in reversed(seen):
        channel.beat()
        with contextlib.suppress(OSError):
            tree.remove(path, directory=is_directory)
    book.remove()
