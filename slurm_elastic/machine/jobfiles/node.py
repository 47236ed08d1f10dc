"""The end on the machine. It starts as root, makes the job's directory, and becomes the job's user.

For each directory it records the files as they came, so that only changed files go back, and the
jobs that use the directory. The copy back of the last of these jobs removes the files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Mapping, Sequence

from .book import Book, State, known, wait
from .identity import END_WAIT_S, Identity, become
from .marks import check_different, is_in, marks_of, shared_directories, unmarked_directories
from .owed import Owed
from .places import check_owners, check_way, make_place
from .steps import has_steps
from .tree import Tree, sample, stamp
from .uses import Use
from .wire import Channel, CopyError, Message

STATE = "/var/lib/slurm-elastic-node/files"
"""A directory for each uid, with a file for each copied directory."""
MOUNT_WAIT_S = 60.0
"""How long a copy waits for a directory that the machine lacks."""


def run(identity: Identity, channel: Channel) -> None:
    """Serve one copy. ``identity`` is slurm-elasticd's; what ``channel`` brings comes from a
    process with the rights of the user, so root must not believe it.
    """
    os.umask(0o022)  # what root makes above a user's directory must let the user through
    header = {**channel.receive(), "do": identity.do}
    if header["do"] == "back":
        _wait_for_end(identity, channel)
    if header["do"] == "out":
        for path, owners, shared in header["places"]:
            make_place(
                str(path), owners, identity.uid, identity.gid, shared=shared,
                groups=identity.groups,
            )  # fmt: skip
    # The last steps that need root. After ``become`` nothing that the head sends can reach the
    # files of other users.
    use = Use(identity, str(header["directory"]), begin=header["do"] == "out")
    place = _state_directory(identity.uid, identity.gid)
    owed = Owed(identity)
    become(identity)
    header["shared"] = shared_directories(marks_of(header))
    if os.path.normpath(str(header["directory"])) in header["shared"]:
        use.end()  # the jobs of all users work there as on the head
    else:
        use.check()
        _check_strangers(header, identity)
    if header["do"] == "out":
        _check_place(str(header["directory"]), channel)
    if header["do"] == "outputs":
        channel.send(holes=True, shared=sorted(header["shared"]))
        missing = _send_outputs(header, channel)
        owed.note_outputs(len(header["outputs"]) - len(missing))
        channel.send(t="end")
        channel.receive()
        channel.send(notes=[])
        return
    header |= {"seen_outputs": owed.outputs, "is_known": owed.is_known}
    with Book(place, str(header["directory"]), channel, identity) as book:
        if header["do"] == "out":
            _check_rights(header, book)
            _take_in(header, book, channel)
            owed.set(is_owed=True)
        else:
            try:
                _give_back(header, book, channel)
            except CopyError as error:
                if error.final:
                    # No further try comes, so the node need not wait for it.
                    owed.set(is_owed=False)
                    use.end()
                raise
            owed.set(is_owed=False)
            use.end()


def _check_place(path: str, channel: Channel) -> None:
    """CopyError if Slurm would not find the job's directory, although it was made if it can be."""

    def is_there() -> bool:
        return os.access(path, os.R_OK | os.X_OK, effective_ids=True)

    if is_there():
        check_way(path)
        return
    # Final, because the machine is paid while its job waits, and the next machine is no other. But
    # a mount of the image may come after the machine's sshd.
    raise CopyError(
        f"on the machine {path} cannot be made for the job's user, or not be read:"
        " submit the job from another directory",
        final=not wait(is_there, MOUNT_WAIT_S, channel),
    )


def _check_strangers(header: Message, identity: Identity) -> None:
    """CopyError if a stranger has made a directory that the job's files would go to."""
    for path, owners, _ in header.get("places", ()):
        check_owners(str(path), owners, identity.uid)


def _check_rights(header: Message, book: Book) -> None:
    """CopyError if the job may write in its directory on the head, but not here."""
    if book.directory in header["shared"] or not header["may_write"]:
        return
    here = book.directory
    if os.path.isdir(here) and not os.access(here, os.W_OK | os.X_OK, effective_ids=True):
        owner = os.stat(here).st_uid
        raise CopyError(
            f"{here} belongs to uid {owner} on the machine, and the job may not write there:"
            " submit the job from a directory of your own",
            final=True,
        )


def _wait_for_end(identity: Identity, channel: Channel) -> None:
    """Wait for the end of the job's processes. CopyError if they go on, unless no later try has the
    time to wait for them.
    """
    has_ended = wait(lambda: not has_steps(identity.job), identity.end_wait, channel)
    if not has_ended and identity.end_wait >= END_WAIT_S:
        raise CopyError(f"processes of job {identity.job} still run on the machine")


def _tree(header: Message, directory: str) -> Tree:
    return Tree(directory, header["exclude"], one_file_system=True)


def _state_directory(uid: int, gid: int) -> str:
    os.makedirs(STATE, 0o755, exist_ok=True)
    place = f"{STATE}/{uid}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, 0o700)
        os.chown(place, uid, gid)
    return place


def _check_different(header: Message, book: Book) -> None:
    mark = marks_of(header).get(book.directory)
    if mark is not None:
        check_different(book.directory, mark)


def _take_in(header: Message, book: Book, channel: Channel) -> None:
    # The head may have a part of these outputs. If it came here, the other jobs would write on into
    # files without a name.
    outputs = book.outputs_of_others()
    channel.send(holes=True, shared=sorted(header["shared"]), outputs=sorted(book.below(outputs)))
    if book.directory in header["shared"]:
        channel.send(end=True)
        channel.receive()
        channel.send(done=True, notes=[])
        return
    _check_different(header, book)
    tree = _tree(header, book.directory)
    listed: dict[str, os.stat_result] = {}
    for path, status in book.without(outputs, tree.entries()):
        channel.beat()
        here = state_of(tree, path, status)
        if book.is_new:
            book.add(path, here)
        keep = book.has_others_at(path) and not book.has_come(path, here)
        # If no other run has changed a file, a run that was given up has: the head's file counts.
        if not keep and path in book.base and not book.has_come(path, here):
            tree.note(
                path, "a job that was given up has changed it here: the head's file replaces it"
            )
        listed[path] = status
        channel.send(p=path, at=here, keep=keep)
    # Before the files come: the end of a job in a directory above must not remove them.
    book.begin(header["outputs"])
    book.save()
    channel.send(end=True)
    try:
        _take_entries(tree, book, channel, listed)
    finally:
        # If this copy fails, its files must look neither like the machine's own nor like a job's.
        book.save()
    channel.send(done=True, notes=tree.notes)


def _take_entries(
    tree: Tree, book: Book, channel: Channel, listed: Mapping[str, os.stat_result]
) -> None:
    while (message := channel.receive())["t"] != "end":
        path = str(message["p"])
        try:
            _take_entry(tree, path, message, book, channel, listed.get(path))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            tree.note_mount(error)


def _take_entry(
    tree: Tree, path: str, message: Message, book: Book, channel: Channel,
    listed: os.stat_result | None,
) -> None:  # fmt: skip
    """Take an entry of the head's directory. ``listed``: the status that the head knows of our
    entry of this name.
    """
    is_directory = message["t"] == "d"
    is_other_kind = listed is not None and stat.S_ISDIR(listed.st_mode) != is_directory
    if is_other_kind and _may_replace(tree, path, book, listed):
        with contextlib.suppress(OSError):  # if it is not empty, its use says so
            tree.remove(path, directory=not is_directory)
    if is_directory:
        tree.make_directory(path, int(message["mode"]))
    elif message["t"] == "l":
        if _may_replace(tree, path, book, listed):
            tree.write_link(path, message["to"])
            book.base[path] = message["to"]
    else:
        _take_file(tree, path, message, book, channel, listed)
    if path in book.base:
        book.own.pop(path, None)


def _take_file(
    tree: Tree, path: str, message: Message, book: Book, channel: Channel,
    listed: os.stat_result | None,
) -> None:  # fmt: skip
    # Another job may write the file at any time. A later look would take its text for the head's.
    status = listed
    if message["content"]:
        with channel.sparse_content() as blocks:
            status = tree.write(
                path, message, blocks, sync=False,
                may_replace=lambda: _may_replace(tree, path, book, listed),
            )  # fmt: skip
    if status is not None:
        book.base[path] = known([message["s"], message["m"]], status)


def _may_replace(tree: Tree, path: str, book: Book, listed: os.stat_result | None) -> bool:
    """Whether no other job has changed the entry since the head has heard of it."""
    status = tree.status(path)
    if status is None or not book.has_others_at(path):
        return True
    if listed is not None and stamp(status) == stamp(listed) and status.st_ino == listed.st_ino:
        return True
    tree.note(path, "another job has changed it during the copy: the machine's file stays")
    return False


def _give_back(header: Message, book: Book, channel: Channel) -> None:
    channel.send(holes=True, shared=sorted(header["shared"]))
    # The outputs first: if the machine is lost before the rest is copied, they are worth most.
    missing = _send_outputs({**header, "present": []}, channel)
    tree: Tree | None = None
    _check_record(header, book)
    # Send and remove only files that have come here for a run. Without a record, all files of
    # the directory would be taken for the job's.
    if book.has_run and book.directory not in header["shared"]:
        _check_different(header, book)
        with contextlib.suppress(FileNotFoundError):  # the job may have removed it
            tree = _tree(header, book.directory)
    sent: dict[str, os.stat_result | str] = {}
    job_paths = [] if tree is None else _send_changes(tree, header, book, channel, sent)
    missed = [] if tree is None else tree.unread
    unread = [f"{path}: {reason}" for path, reason in missed if path not in book.own]
    channel.send(t="end", unread=unread)
    written: Message = {}
    while "done" not in (message := channel.receive()):
        written |= message["written"]
    notes = [] if tree is None else tree.notes
    if len(header["outputs"]) - len(missing) < header["seen_outputs"]:
        notes += [f"{path}: this output has gone from the machine" for path in missing]
    book.end()
    # The status from before the content was sent: another job may have changed the file since, and
    # a later look would take this change for sent.
    for path, state in sent.items():
        if isinstance(state, str):
            book.base[path] = state
        elif path in written:
            book.base[path] = known(written[path], state)
    _remove_outputs(header, book.outputs_of_others())
    # Another job may still use these files, in this directory or in one above or below it.
    if book.runs or tree is None or book.has_neighbours():
        book.save()
    else:
        _clean(tree, job_paths, book, channel)
    channel.send(bye=True, notes=notes)


def _check_record(header: Message, book: Book) -> None:
    """CopyError if the machine has lost the record of the run, as with its disk. All files would
    otherwise count as returned, although none has come back.
    """
    # The record also has no run if the last copy is repeated, or if both ends share the directory.
    is_lost = book.is_broken or not header["is_known"]
    if is_lost and not book.has_run and book.directory not in header["shared"]:
        raise CopyError("the machine has lost its record of the job's files", final=True)


def _send_changes(
    tree: Tree, header: Message, book: Book, channel: Channel,
    sent: dict[str, os.stat_result | str],
) -> list[tuple[str, bool]]:  # fmt: skip
    """Send the changed files. Return all paths that came or that a job has made, each with whether
    it is a directory. ``sent`` gets the status of each file that was sent, and the target of each
    link.
    """
    outputs = book.outputs_of_others() | set(header["outputs"])
    seen: list[tuple[str, bool]] = []
    for path, status in book.without(outputs, tree.entries()):
        channel.beat()
        if path not in book.own:
            seen.append((path, stat.S_ISDIR(status.st_mode)))
        try:
            _send_change(tree, path, status, book, channel, sent)
        except FileNotFoundError as error:
            tree.note(path, error)
        except PermissionError as error:
            tree.miss(path, error)
    return seen


def _send_change(
    tree: Tree, path: str, status: os.stat_result, book: Book, channel: Channel,
    sent: dict[str, os.stat_result | str],
) -> None:  # fmt: skip
    if stat.S_ISDIR(status.st_mode):
        channel.send(t="d", p=path, mode=status.st_mode)
    elif stat.S_ISLNK(status.st_mode):
        target = tree.link_target(path)
        if target != book.base.get(path) and path not in book.own:
            channel.send(t="l", p=path, to=target, base=book.base_of(path))
            sent[path] = target
    elif book.changed(path, status):
        sent[path] = _send_file(tree, path, book, channel)
    elif (entry := book.base.get(path)) and entry["mode"] != status.st_mode & 0o777:
        channel.send(t="m", p=path, mode=status.st_mode, base=entry["head"])


def _send_file(tree: Tree, path: str, book: Book, channel: Channel) -> os.stat_result:
    """Send a file, and return its status from before its content was read."""
    descriptor = tree.open(path)
    try:
        status = os.fstat(descriptor)
        channel.send(t="f", p=path, s=status.st_size, m=status.st_mtime_ns, mode=status.st_mode,
                     base=book.base_of(path))  # fmt: skip
        channel.send_content(descriptor, sparse=True)
        return status
    finally:
        os.close(descriptor)


def state_of(tree: Tree, path: str, status: os.stat_result) -> State:
    """The state of an entry, as the record has it."""
    if stat.S_ISLNK(status.st_mode):
        return tree.link_target(path)
    return stamp(status) if stat.S_ISREG(status.st_mode) else None


def _send_outputs(header: Message, channel: Channel) -> list[str]:
    """Send the outputs whole, or only from the end of the head's part on. Return the paths at which
    there is none.

    ``present``: for each output the size and the sample of the head's part (a size below 0: the
    head wants nothing of it); empty for the last copy.
    """
    present: Sequence[tuple[int, str]] = header["present"]
    missing: list[str] = []
    for number, path in enumerate(header["outputs"]):
        if is_in(path, header["shared"]):
            continue
        try:
            # O_NONBLOCK: the output may be a pipe, whose open would wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            missing.append(path)  # the job has not begun, or its output is on another node
            continue
        try:
            status = os.fstat(descriptor)
            size, digest = present[number] if present else (0, "")
            if stat.S_ISREG(status.st_mode) and size >= 0:
                is_grown = size <= status.st_size and sample(descriptor, 0, size) == digest
                begin = size if is_grown else 0
                os.lseek(descriptor, begin, os.SEEK_SET)
                channel.send(t="o", i=number, begin=begin)
                channel.send_content(descriptor)
        finally:
            os.close(descriptor)
    return missing


def _remove_outputs(header: Message, used: Collection[str]) -> None:
    """Remove the outputs but those ``used`` by other runs, which write on into the same files."""
    # An output in a directory that may be the head's stays: it may be the only copy.
    kept = unmarked_directories(marks_of(header)) | set(header["shared"])
    for path in header["outputs"]:
        if os.path.normpath(path) in used or is_in(path, kept):
            continue
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.lstat(path).st_mode):
                os.unlink(path)


def _clean(tree: Tree, seen: Sequence[tuple[str, bool]], book: Book, channel: Channel) -> None:
    """Remove the files, because no other job uses the directory."""
    is_empty = True
    # Backwards, because a directory comes before its content and can only be removed when empty.
    for path, is_directory in reversed(seen):
        channel.beat()
        with contextlib.suppress(OSError):
            status = tree.status(path)
            if status is None:
                continue
            if not is_directory and not book.has_come(path, state_of(tree, path, status)):
                # A process outside of the job's steps has written it.
                tree.note(path, "it has changed since it was sent: the machine keeps it")
                is_empty = False
                continue
            tree.remove(path, directory=is_directory)
    if is_empty:
        book.remove()
    else:
        book.save()
