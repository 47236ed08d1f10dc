"""The end on the head, as the job's user."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import chain
from typing import NamedTuple

from .locks import Locks
from .marks import is_in, marked
from .places import NOT_SHARED, check_way, ways_of
from .tree import Tree, open_below, sample, stamp, write_blocks
from .wire import Block, Channel, CopyError, Message, UnreadableError

_PASSED_ON = ("directory", "exclude")
_ONE_FILE = (
    FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError, UnreadableError,
)  # fmt: skip
"""Errors of one file. Others, such as a full disk, concern all."""
_FILE_ERRORS = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.EFBIG)
"""Names and sizes that the head's file system does not take."""
_MAX_NAME_BYTES = 255
_STAMPS_AT_ONCE = 150
"""Files per message: a message is a line, and lines are bounded (4 MiB). The path of one file takes
up to 4096 bytes, and each of them up to six characters of JSON.
"""
_LOST_NAMED = 20
"""Lost files that a report names."""
NOT_WANTED = -1
_LOCK_WAIT_S = 20.0
"""Shorter than wire.SILENCE_S: the machine waits meanwhile."""
_BLOCK_BYTES = 1 << 20
_MIN_DEPTH = 2
"""Names in the path of a directory that is copied: not /tmp or /home."""
Plan = Sequence[tuple[str, os.stat_result]]


def run(order: Message, channel: Channel, locks: Locks) -> Message:
    """Copy ``out`` to the machine, ``back`` from it, or only the ``outputs``. Return the result.

    The order's ``outputs`` are the files of the job's output, each with the ``base``, where the
    output of this run begins. A ``late`` output comes with the last copy only. The result of
    ``outputs`` names the outputs that have become late. ``locks`` keep the user's other copies off.
    """
    directory = os.path.normpath(str(order["directory"]))
    outputs = [str(output["path"]) for output in order["outputs"]]
    if order["do"] == "out" and directory.count("/") < _MIN_DEPTH:
        raise CopyError(
            f"{directory} is no directory of a job's own: submit the job from another one",
            final=True,
        )
    if order["do"] == "outputs":  # they may be elsewhere, and the directory may be gone
        directory = "/"
    try:
        if order["do"] == "out":
            check_way(str(order["directory"]))
        tree = Tree(directory, order["exclude"], locks=locks)
    except OSError as error:
        # Not final: its user may make it again, and a file system may be away for a moment.
        raise CopyError(f"{directory}: {error.strerror}") from None
    # The machine takes the user and the job from slurm-elasticd's ssh command, not from us.
    header = {"holes": True} | {name: order[name] for name in _PASSED_ON}
    of_outputs = [os.path.dirname(path) for path in outputs]
    used = list(dict.fromkeys((directory, *map(os.path.normpath, of_outputs))))
    # While the job runs, nothing is removed, and a mark each minute would touch its directories.
    with marked(used if order["do"] != "outputs" else ()) as marks:
        if order["do"] == "out":
            ways = chain.from_iterable(map(ways_of, (str(order["directory"]), *of_outputs)))
            places = [
                _owned_place(place)
                for place in dict.fromkeys((*used, *ways))
                if place != "/" and os.path.isdir(place)
            ]
            # The user's rights, as those of the job that has run here until now.
            may_write = os.access(directory, os.W_OK | os.X_OK, effective_ids=True)
            channel.send(outputs=outputs, places=places, marks=marks, may_write=may_write, **header)
        else:
            present = [_present(order, output) for output in order["outputs"]]
            channel.send(outputs=outputs, present=present, marks=marks, **header)
        answer = channel.receive()
        shared = set(answer["shared"])
    if directory in shared:
        tree.note(directory, "the machine has the same directory: nothing in it is copied")
    if order["do"] == "out":
        for path in outputs:
            if not is_in(path, shared):
                _check_output(order, path)
        in_use = frozenset(answer["outputs"])
        outputs_there = None if directory in shared else in_use
        result = _send_out(tree, order, channel, outputs_there)
        # The output in a shared directory is on the head already, and stays out of later copies.
        result["bases"] = {path: _size_of(path) for path in outputs if not is_in(path, shared)}
        # These files are on the machine already, with the text of other jobs of the user.
        result["joined"] = [
            path for path in result["bases"] if os.path.relpath(path, directory) in in_use
        ]
    else:
        # Bases count even if the copy fails later: the next try must find what is written.
        result = _take_back(tree, order, channel, order.setdefault("bases", {}))
    late = order.get("late", [])
    return {**result, "late": late, "notes": [*tree.notes, *result["notes"]]}


def _owned_place(path: str) -> list[str | list[int]]:
    """The path of a directory, and for each directory on the way its owner, and the group that may
    write there (NOT_SHARED: none).
    """
    names = path.strip("/").split("/")
    ways = [os.stat("/" + "/".join(names[: i + 1])) for i in range(len(names))]
    groups = [way.st_gid if way.st_mode & stat.S_IWGRP else NOT_SHARED for way in ways]
    return [path, [way.st_uid for way in ways], groups]


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _open_output(order: Message, path: str, flags: int) -> int:
    """Open an output without following links. A machine may have sent a link with the files of
    this job or of an earlier job.
    """
    # O_NONBLOCK: the output may be a pipe, whose open would wait for a writer.
    flags |= os.O_NONBLOCK | os.O_CLOEXEC
    directory = os.path.normpath(str(order["directory"]))
    below = os.path.relpath(path, directory)
    if below.startswith("../"):
        # The user has named these directories, and links to other file systems are common in them.
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    return open_below(directory, below, flags, 0o666)


def _check_output(order: Message, path: str) -> None:
    """CopyError if the output could not come back because of a link: better before the job."""
    try:
        os.close(_open_output(order, path, os.O_RDONLY))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise CopyError(
                f"the output {path} is a link, or leads through one below the job's directory:"
                " submit the job with the path of the file itself",
                final=True,
            ) from None


def _links_of_outputs(order: Message) -> frozenset[str]:
    """The paths in the job's directory at which a link would lead an output elsewhere."""
    directory = os.path.normpath(str(order["directory"]))
    paths: set[str] = set()
    for output in order["outputs"]:
        above, name = os.path.split(str(output["path"]))
        real = os.path.join(os.path.realpath(above), name)
        for top, path in ((directory, output["path"]), (os.path.realpath(directory), real)):
            names = os.path.relpath(path, top).split("/")
            paths |= {"/".join(names[: i + 1]) for i in range(len(names))}
    return frozenset(paths)


def _present(order: Message, output: Message) -> tuple[int, str]:
    """The size of this run's output that the head has (NOT_WANTED: send none of it), and a sample
    of this output.
    """
    base = int(output["base"])
    if output.get("late"):
        return NOT_WANTED, ""
    try:
        descriptor = _open_output(order, str(output["path"]), os.O_RDONLY)
    except OSError:
        return 0, ""
    try:
        status = os.fstat(descriptor)
        size = max(status.st_size - base, 0) if stat.S_ISREG(status.st_mode) else 0
        return size, sample(descriptor, base, size) if size else ""
    except OSError:
        return 0, ""
    finally:
        os.close(descriptor)


def _plan(tree: Tree, order: Message, channel: Channel, outputs_there: Set[str]) -> Plan:
    """The entries to copy, without ``outputs_there``. CopyError if they are larger than the
    order's ``size_limit`` (bytes).
    """
    directory, limit = os.path.normpath(str(order["directory"])), int(order["size_limit"])
    left_out = {os.path.relpath(output["path"], directory) for output in order["outputs"]}
    left_out |= outputs_there
    plan, size = [], 0
    for path, status in tree.entries():
        channel.beat()
        if path in left_out:
            continue
        plan.append((path, status))
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        # Inside the loop: the rest of a huge directory need not be read.
        if size > limit:
            raise CopyError(
                f"{directory} has more than {limit >> 20} MiB, the copy.size_limit: submit the job"
                " from a smaller directory",
                final=True,
            )
    return plan


def _send_out(
    tree: Tree, order: Message, channel: Channel, outputs_there: Set[str] | None
) -> Message:
    """Send the directory. ``outputs_there``: the output files of other jobs that use the machine;
    None if the machine has the same directory.
    """
    present: dict[str, Message] = {}
    while "end" not in (message := channel.receive()):
        present[str(message["p"])] = message
    plan = () if outputs_there is None else _plan(tree, order, channel, outputs_there)
    count = size = 0
    kept: list[str] = []
    for path, status in plan:
        if any(path.startswith(f"{directory}/") for directory in kept):
            continue
        there = present.get(path)
        try:
            if stat.S_ISDIR(status.st_mode):
                if not _send_directory(tree, path, status.st_mode, there, channel):
                    kept.append(path)  # the machine has no directory there, so nothing can be below
                continue
            sent = _send_file_or_link(tree, path, status.st_mode, there, channel)
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            tree.note(path, error)
            continue
        count, size = count + (sent >= 0), size + max(sent, 0)
    channel.send(t="end")
    return {"files": count, "bytes": size, "notes": channel.receive()["notes"]}


def _send_directory(
    tree: Tree, path: str, mode: int, present: Message | None, channel: Channel
) -> bool:
    """Send a directory. Return False if the machine keeps another entry in its place."""
    if _is_kept(tree, path, present, None):
        return False
    channel.send(t="d", p=path, mode=mode)
    return True


def _send_file_or_link(
    tree: Tree, path: str, mode: int, present: Message | None, channel: Channel
) -> int:
    """As ``_send_file``; -1 for a link."""
    if stat.S_ISREG(mode):
        return _send_file(tree, path, present, channel)
    _send_link(tree, path, present, channel)
    return -1


def _send_link(tree: Tree, path: str, present: Message | None, channel: Channel) -> None:
    target = tree.link_target(path)
    if not _is_kept(tree, path, present, target):
        channel.send(t="l", p=path, to=target)


def _send_file(tree: Tree, path: str, present: Message | None, channel: Channel) -> int:
    """Send a file unless the machine has it, or has changed it. Return the bytes that were sent, or
    -1 if the content was not.
    """
    descriptor = tree.open(path)
    try:
        status = os.fstat(descriptor)
        if _is_kept(tree, path, present, stamp(status)):
            return -1
        is_wanted = present is None or present["at"] != stamp(status)
        channel.send(t="f", p=path, s=status.st_size, m=status.st_mtime_ns, mode=status.st_mode,
                     content=is_wanted)  # fmt: skip
        if not is_wanted:
            return -1
        channel.send_content(descriptor, sparse=True)
        return status.st_size
    finally:
        os.close(descriptor)


def _is_kept(tree: Tree, path: str, present: Message | None, state: list[int] | str | None) -> bool:
    """Whether the machine's entry stays, because another job has changed it. ``state``: the stamp
    of our file, the target of our link, or None for a directory.
    """
    if present is None or not present["keep"] or present["at"] == state:
        return False
    tree.note(path, "another job has changed it on the machine: the machine's file stays")
    return True


def _take_back(tree: Tree, order: Message, channel: Channel, bases: dict[str, int]) -> Message:
    """Write the files that the machine sends: the outputs, and the files that the job
    has changed.
    """
    written: dict[str, list[int]] = {}
    failed: list[str] = []
    lost: list[str] = []
    count = size = 0
    while (message := channel.receive())["t"] != "end":
        channel.beat()  # the machine has sent all, perhaps, and waits until it is on our disk
        if message["t"] == "o":
            output = order["outputs"][int(message["i"])]
            try:
                bases |= _take_output(tree, output, int(message["begin"]), order, channel, lost)
            except OSError as error:
                # The outputs come first, and trouble with one must not cost the job all the rest.
                failed.append(f"{output['path']}: {error.strerror or error}")
            continue
        if message["t"] == "f":
            count, size = count + 1, size + int(message["s"])
        _take_entry(tree, message, order, channel, written, lost)
    lost += message.get("unread", ())
    stamps = list(written.items())
    for begin in range(0, len(stamps), _STAMPS_AT_ONCE):
        channel.send(written=dict(stamps[begin : begin + _STAMPS_AT_ONCE]))
    if failed:
        # Not done: the machine keeps everything until the next try.
        raise CopyError("; ".join((*failed, *lost[:_LOST_NAMED])))
    if lost and order["do"] == "back":
        # The machine must not remove the only copies. Another try would fail, too.
        unnamed = f"; and {len(lost) - _LOST_NAMED} more" if len(lost) > _LOST_NAMED else ""
        raise CopyError(f"all came back but {'; '.join(lost[:_LOST_NAMED])}{unnamed}", final=True)
    channel.send(done=True)
    notes = channel.receive()["notes"]
    return {"files": count, "bytes": size, "bases": bases, "notes": notes}


def _take_entry(
    tree: Tree, message: Message, order: Message, channel: Channel, written: dict[str, list[int]],
    lost: list[str],
) -> None:  # fmt: skip
    path = str(message["p"])
    if tree.excludes(path):
        # No machine of ours sends such a file: root on it may have other things in mind.
        raise CopyError(f"the machine sends {path}, which is excluded", final=True)
    try:
        if message["t"] == "d":
            tree.make_directory(path, int(message["mode"]))
        elif message["t"] == "l":
            if path in _links_of_outputs(order):
                tree.note(path, "a link at the job's output, or on the way to it, is not copied")
                return
            _take_link(tree, path, message, order)
        elif message["t"] == "m":
            _take_mode(tree, path, message)
        else:
            written[path] = _take_file(tree, path, message, order, channel)
    # One file that cannot be written must not cost the job all others.
    except OSError as error:
        if not isinstance(error, _ONE_FILE) and error.errno not in _FILE_ERRORS:
            raise
        tree.note(path, error)
        if message["t"] in ("f", "l"):
            lost.append(f"{path}: {error.strerror or error}")


def _take_link(tree: Tree, path: str, message: Message, order: Message) -> None:
    with tree.only_writer(path):
        status = tree.status(path)
        if status is None or _is_base(tree, path, status, message):
            tree.write_link(path, message["to"])
        elif not _leads_to(tree, path, message):
            place = _other_name(tree, path, order, lambda name: _leads_to(tree, name, message))
            tree.write_link(place, message["to"])
            tree.note(path, f"it was changed on the head, too: the job's is {place}")


def _is_base(tree: Tree, path: str, status: os.stat_result, message: Message) -> bool:
    """Whether the head still has the file or link that the job began with."""
    base = message["base"]
    if stat.S_ISLNK(status.st_mode):
        return isinstance(base, str) and tree.link_target(path) == base
    return stat.S_ISREG(status.st_mode) and stamp(status) == base


def _take_mode(tree: Tree, path: str, message: Message) -> None:
    """Change the mode of a file whose content has not changed on either side."""
    with tree.only_writer(path):
        status = tree.status(path)
        if status is not None and stat.S_ISREG(status.st_mode) and stamp(status) == message["base"]:
            tree.set_mode(path, int(message["mode"]))


def _leads_to(tree: Tree, name: str, message: Message) -> bool:
    try:
        return bool(tree.link_target(name) == message["to"])
    except OSError:  # no link
        return False


def _take_file(
    tree: Tree, path: str, message: Message, order: Message, channel: Channel
) -> list[int]:
    """Write a file that the job has changed or made, and return its stamp. If the file was changed
    on the head, too, the head's file stays, and the job's file gets another name.
    """
    with channel.sparse_content() as blocks:
        status, sent = tree.status(path), [message["s"], message["m"]]
        if status is not None and stamp(status) == sent:
            return sent
        place = _place_file(tree, path, message, order, blocks)
        now = tree.status(place)
        return sent if now is None else stamp(now)


def _place_file(
    tree: Tree, path: str, message: Message, order: Message, blocks: Iterator[Block]
) -> str:
    """Write the file, and return the name that it got."""
    with tree.draft(path, message, blocks, sync=True) as draft, tree.only_writer(path):
        # Other jobs, and the other nodes of this one, may have brought a file of this name by now.
        status, place = tree.status(path), path
        is_changed = status is not None and not _is_base(tree, path, status, message)
        if is_changed and not _has_come(tree, path, message):
            place = _other_name(tree, path, order, lambda name: _has_come(tree, name, message))
            tree.note(path, f"it was changed on the head, too: the job's is {place}")
        tree.place_draft(draft, place)
    return place


def _has_come(tree: Tree, path: str, message: Message) -> bool:
    """Whether an earlier try has written this file.

    The times are compared as exactly as the file system keeps them: some file systems keep only
    seconds or microseconds.
    """
    status = tree.status(path)
    if status is None or not stat.S_ISREG(status.st_mode) or status.st_size != message["s"]:
        return False
    step = next(step for step in (10**9, 1000, 100, 1) if status.st_mtime_ns % step == 0)
    return bool(status.st_mtime_ns == message["m"] - message["m"] % step)


def _other_name(tree: Tree, path: str, order: Message, has_come: Callable[[str], bool]) -> str:
    """A name for the job's file. Each try gets the same name, because a copy under a new name in
    each try would fill the disk.
    """
    directory, slash, name = path.rpartition("/")
    number = 1
    while True:
        end = f".job-{order['job']}" + (f".{number}" if number > 1 else "")
        short = os.fsdecode(os.fsencode(name)[: _MAX_NAME_BYTES - len(end)])
        other = f"{directory}{slash}{short}{end}"
        if tree.status(other) is None or has_come(other):
            return other
        number += 1


def _take_output(
    tree: Tree, output: Message, begin: int, order: Message, channel: Channel, lost: list[str]
) -> dict[str, int]:
    """Write a run's output. Return its path with the place where it begins; {} if it cannot be
    written.
    """
    path = str(output["path"])
    with channel.content() as blocks:
        try:
            base = _write_output(order, output, begin, blocks, locks=tree.locks, wait=channel.beat)
        except _ONE_FILE as error:
            tree.note(path, error)
            lost.append(f"{path}: {error.strerror or error}")
            return {}
    return {path: base}


def _write_output(
    order: Message, output: Message, begin: int, blocks: Iterator[bytes], *, locks: Locks,
    wait: Callable[[], object],
) -> int:  # fmt: skip
    """Write a run's output into its file from its ``base`` on, so that the output of earlier runs
    stays.

    Return where the output begins. It begins after ``base`` if another text is there: the text of
    another job, or the text that the saved run wrote after its save, if the restored run wrote
    another one.
    ``begin``: how much of the output the machine has left out, because the file has it already.
    """
    path, base = str(output["path"]), int(output["base"])
    may_append = order["do"] == "back" or bool(output.get("restored"))
    descriptor = _open_output(order, path, os.O_RDWR | os.O_CREAT)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileExistsError(errno.EEXIST, "no file, but something else has this name")
        # Jobs may share a file, and each copy looks at what is there before it writes.
        with locks.held(status, _LOCK_WAIT_S, wait) as is_held:
            if not is_held:
                raise BlockingIOError(errno.EWOULDBLOCK, "another copy writes it", path)
            place = _find_place(descriptor, base, begin, blocks, may_append=may_append)
            if place is None:
                # It would come in vain with each copy until the job's end, and traffic costs money.
                order.setdefault("late", []).append(path)
                return base
            # Before the text: if this copy breaks off, the next copy continues what it has written.
            order.setdefault("bases", {})[path] = place.base
            _write_at(descriptor, place.missing_at, place.blocks)
        return place.base
    finally:
        os.close(descriptor)


class _Place(NamedTuple):
    """An output begins at ``base``, and its file lacks ``blocks`` from ``missing_at`` on."""

    base: int
    missing_at: int
    blocks: Iterator[bytes]


def _find_place(
    descriptor: int, base: int, begin: int, blocks: Iterator[bytes], *, may_append: bool
) -> _Place | None:
    """As ``_write_output``; None if the output must wait for the last copy."""
    size = os.fstat(descriptor).st_size
    if begin:
        # If the file has changed since the last copy, the next copy brings all.
        return _Place(base, size, blocks if size == base + begin else iter(()))
    base = min(base, size)
    # All of our part is compared. If only its beginning were, our output would be written over the
    # output of a job on another machine, and that machine may have removed it already.
    differs_at, block = _first_difference(descriptor, base, blocks)
    present = os.pread(descriptor, len(block), differs_at)
    if block.startswith(present):
        return _Place(base, differs_at + len(present), chain([block[len(present) :]], blocks))
    if not may_append and (differs_at > base or present[:1] == block[:1]):
        # The file has a part of our output, and then the output of another job, because both
        # jobs write it. Our whole output comes with the last copy. If it came with each
        # copy, it would fill the disk.
        return None
    return _Place(size, size, chain(_blocks_of(descriptor, base, differs_at), [block], blocks))


def _first_difference(descriptor: int, base: int, blocks: Iterator[bytes]) -> tuple[int, bytes]:
    """The first block that the file does not have, with its place; b"" if the file has all."""
    place = base
    for block in blocks:
        if os.pread(descriptor, len(block), place) != block:
            return place, block
        place += len(block)
    return place, b""


def _blocks_of(descriptor: int, begin: int, end: int) -> Iterator[bytes]:
    """The content of a file from ``begin`` to ``end``."""
    while block := os.pread(descriptor, min(_BLOCK_BYTES, end - begin), begin):
        yield block
        begin += len(block)


def _write_at(descriptor: int, place: int, blocks: Iterator[bytes]) -> None:
    os.lseek(descriptor, place, os.SEEK_SET)
    write_blocks(descriptor, blocks, sync=True)
    os.fsync(descriptor)
