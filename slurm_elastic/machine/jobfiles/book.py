"""The record of one directory on a machine: which runs of jobs use it, and how its files came.

A user's records are in one place, so that a run sees the runs of all other directories, too: they
may be above or below its own, and may write their output there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from .identity import Identity
from .tree import stamp
from .wire import Channel, CopyError, Message

LOCK_WAIT_S = {"out": 240.0, "back": 20.0}
"""How long a copy waits for another copy of the same directory. A copy back reports soon that it
waits, because this time does not count for it.
"""
_ENDING = ".json"
State = list[int] | str | None
"""The stamp of a file, the target of a link, or None for a directory."""


class Book:
    """It is a context, because only one copy at a time may use the record of a directory.

    ``base``: by path, the stamps of a file on the head and here, or the target of a link.
    ``runs``: by run, the time of its order (``at``) and its output files (``outputs``). No copy of
    another run sends, replaces or removes these outputs.
    ``own``: by path, the stamp of a file that the machine had before the first copy, or None for a
    directory or link. Only the machine's owner removes these.
    ``is_broken``: the record is there, but nothing can be learned from it.
    """

    guarded_by: ClassVar[dict[str, str]] = {"_lock": "to copy the files of one directory"}

    def __init__(self, place: str, directory: str, channel: Channel, identity: Identity) -> None:
        directory = os.path.normpath(directory)
        self._path = Path(place, record_name(directory))
        self._channel, self.directory = channel, directory
        self.base: dict[str, Any] = {}
        self.own: dict[str, list[int] | None] = {}
        self.runs: dict[str, Message] = {}
        self._identity = identity
        self.is_new = True
        self.is_broken = False
        self._nested: list[Message] = []

    def __enter__(self) -> Book:
        self._lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        if not wait(self._locked, LOCK_WAIT_S[self._identity.do], self._channel):
            raise CopyError(f"{self.directory}: another copy has used it for too long", busy=True)
        try:
            content = _content_of(self._path)
            self.base, self.own = content["base"], content["own"]
            self.runs = self._counting(content["runs"])
            self.is_new = False
        except FileNotFoundError:
            pass
        except ValueError:
            # The file may be empty after a crash of the machine.
            self.is_broken = True
        self._nested = list(self._nested_records())
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
        # The files have a line of their own: each copy reads the runs of all directories, and the
        # files of a large directory take a second to read.
        head = {"directory": self.directory, "runs": self.runs}
        files = {"base": self.base, "own": self.own}
        draft.write_text(f"{json.dumps(head)}\n{json.dumps(files)}")
        # With half a record all files would count as changed, and would be sent back.
        os.replace(draft, self._path)

    def remove(self) -> None:
        """Forget the directory."""
        self._path.unlink(missing_ok=True)
        self.runs = {}

    # The runs.

    def _counting(self, runs: Mapping[str, Message]) -> dict[str, Message]:
        # The head may have given a run up: then no copy back comes for it.
        return {run: of for run, of in runs.items() if self._identity.counts(run, of["at"])}

    @property
    def has_run(self) -> bool:
        """Whether the files of this copy's run have come: a directory that both ends share is not
        recorded.
        """
        return self._identity.run in self.runs

    def begin(self, outputs: Sequence[str]) -> None:
        """Record the run of this copy, with its output files."""
        paths = [os.path.normpath(path) for path in outputs]
        self.runs[self._identity.run] = {"at": self._identity.made_at, "outputs": paths}

    def end(self) -> None:
        """Forget the run of this copy: its files are back."""
        self.runs.pop(self._identity.run, None)

    @property
    def has_others(self) -> bool:
        """Whether other runs use the directory."""
        return bool(self.runs.keys() - {self._identity.run})

    def _elsewhere(self) -> Iterator[Message]:
        """Yield the user's other records that have runs, without their files."""
        for path in self._path.parent.glob(f"*{_ENDING}"):
            self._channel.beat()
            if path == self._path:
                continue
            with contextlib.suppress(OSError, ValueError):
                with path.open() as lines:
                    record = json.loads(lines.readline())
                if runs := self._counting(record["runs"]):
                    yield {"directory": record["directory"], "runs": runs, "path": path}

    def _nested_records(self) -> Iterator[Message]:
        """Yield the user's other records that have runs above or below, with their files."""
        for record in self._elsewhere():
            if _is_nested(self.directory, record["directory"]):
                with contextlib.suppress(OSError, ValueError):
                    yield {**_content_of(record["path"]), "runs": record["runs"]}

    def has_neighbours(self) -> bool:
        """Whether another run uses a directory above or below this one."""
        return any(_is_nested(record["directory"], self.directory) for record in self._elsewhere())

    def outputs_of_others(self) -> frozenset[str]:
        """The output files of all other runs of the user, whatever their directories are."""
        others = [of for run, of in self.runs.items() if run != self._identity.run]
        for record in self._elsewhere():
            others += record["runs"].values()
        return frozenset(path for of in others for path in of["outputs"])

    # The files.

    def below(self, paths: Iterable[str]) -> frozenset[str]:
        """The paths, as the directory's entries are named."""
        return frozenset(os.path.relpath(path, self.directory) for path in paths)

    def without(
        self, outputs: Iterable[str], entries: Iterable[tuple[str, os.stat_result]]
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the entries of the directory that are none of these outputs."""
        left_out = self.below(outputs)
        return (entry for entry in entries if entry[0] not in left_out)

    def has_others_at(self, path: str) -> bool:
        """Whether another run uses the path, by a directory above or below this one, too."""
        return self.has_others or next(self._records_of(path), None) is not None

    def _records_of(self, path: str) -> Iterator[tuple[Message, str]]:
        """Yield the records of directories above and below this one that the path is in, each with
        the path there.
        """
        whole = f"{self.directory}/{path}"
        for record in self._nested:
            above = f"{record['directory']}/"
            if whole.startswith(above):
                yield record, whole.removeprefix(above)

    def add(self, path: str, here: State) -> None:
        """Note an entry that the machine has before the first copy of this directory. It may have
        come with a directory above or below this one.
        """
        record, there = next(self._records_of(path), (None, ""))
        if record is None:
            self.own[path] = here if isinstance(here, list) else None
            return
        for source, entries in ((record["base"], self.base), (record["own"], self.own)):
            if there in source:
                entries[path] = source[there]

    def has_come(self, path: str, here: State) -> bool:
        """Whether a file or link is still as it has come, or as the machine had it."""
        records = [({"base": self.base, "own": self.own}, path), *self._records_of(path)]
        return here is not None and any(here == _here_of(*entry) for entry in records)

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


def _content_of(path: Path) -> Message:
    """The record in a file. ValueError if it breaks off."""
    head, _, files = path.read_text().partition("\n")
    return {**json.loads(head), **json.loads(files)}


def record_name(directory: str) -> str:
    """The name of the file with the record of a directory."""
    name = hashlib.sha256(os.fsencode(os.path.normpath(directory))).hexdigest()[:32]
    return name + _ENDING


def _here_of(record: Message, path: str) -> State:
    entry = record["base"].get(path)
    if entry is None:
        entry = record["own"].get(path)
    here: State = entry["here"] if isinstance(entry, dict) else entry
    return here


def _is_nested(one: str, other: str) -> bool:
    one, other = f"{one}/", f"{other}/"
    return one != other and (one.startswith(other) or other.startswith(one))


def known(head_stamp: list[int], status: os.stat_result) -> dict[str, Any]:
    """The entry of a file that is on the head with this stamp, and here."""
    return {"head": head_stamp, "here": stamp(status), "mode": status.st_mode & 0o777}


def wait(is_over: Callable[[], bool], timeout: float, channel: Channel) -> bool:
    """Wait for ``is_over``, and send signs of life until then. False after ``timeout`` seconds."""
    until = time.monotonic() + timeout
    while not is_over():
        if time.monotonic() >= until:
            return False
        channel.beat()
        time.sleep(0.2)
    return True
