#!/usr/bin/python3 -IS
"""The program that slurmctld runs as ResumeProgram, SuspendProgram and ResumeFailProgram.

It is installed as a copy under three names, ``slurm-elastic-resume``, ``-suspend`` and
``-resume-fail``; the name is the kind of request. It writes one durable file into ``requests/`` of
the state directory (format: slurm_elastic/state/spool.py), wakes the daemon and exits, because
slurmctld kills these programs after a while and removes SLURM_RESUME_FILE when they exit
(slurm.conf(5)). It takes no lock, uses no network, starts no child, and does not need the daemon.
It uses little of the standard library: importing ``socket`` and ``json`` instead of only their C
parts would double the start-up time.

Exit 0: the request is on the disk. Exit 1: it is not, and the reason is on stderr and in
``programs.log``. Slurm does not repeat the call: the nodes time out (ResumeTimeout) and their jobs
are requeued.
"""

import os
import sys
import time

KINDS = ("resume", "suspend", "resume-fail")
SOCKETS = ("wake.sock", "ckptman.sock")
LOG_LIMIT_BYTES = 1 << 20
RESUME_FILE_LIMIT_BYTES = 64 << 20


class RequestError(Exception):
    """The request cannot be stored; the text says why."""


def main(argv: list[str]) -> int:
    """Store the request of ``argv`` and return the exit code."""
    state_dir = None
    try:
        kind = kind_of(argv[0])
        state_dir = read_setting(os.path.dirname(argv[0]) or ".", "state_dir")
        store(os.path.join(state_dir, "requests"), kind, hostlist_of(argv))
    except (RequestError, OSError) as error:
        complain(state_dir, f"{os.path.basename(argv[0])}: {error} arguments={clip(argv[1:])}")
        return 1
    wake(state_dir, kind)
    return 0


def kind_of(program: str) -> str:
    """Return the kind of request from the program's name."""
    kind = os.path.basename(program).removeprefix("slurm-elastic-")
    if kind not in KINDS:
        raise RequestError(f"must be named slurm-elastic-KIND, KIND one of {', '.join(KINDS)}")
    return kind


def hostlist_of(argv: list[str]) -> str:
    """Return the nodes. Slurm passes one hostlist; several arguments are joined."""
    hostlist = ",".join(name for name in argv[1:] if name)
    if not hostlist:
        raise RequestError(f"usage: {argv[0]} HOSTLIST")
    return hostlist


def read_setting(directory: str, name: str) -> str:
    """Return the value of ``name`` in the file ``settings`` of ``directory``."""
    path = os.path.join(directory, "settings")
    setting = ""
    with open(path, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            key, _, value = line.rstrip("\n").partition("=")
            if key == name:
                setting = value
    if not setting:
        raise RequestError(f"{path}: no value for {name}")
    return setting


def store(requests: str, kind: str, hostlist: str) -> None:
    """Write the request so that it survives a crash of this host. On failure leave no file."""
    received = time.time_ns()
    resume, error = read_resume_file() if kind == "resume" else (b"", None)
    # Copy the resume file without parsing it: with thousands of jobs, parsing would take longer
    # than the rest of this program. The daemon has the time.
    header = (
        f'{{"kind": "{kind}", "hostlist": {quote(hostlist)}, "received": {received / 1e9!r}, '
        f'"resume_file_error": {quote(error) if error else "null"}}}\n'
    )
    # The host name keeps names unique: two heads may write here.
    name = f"{received}-{os.uname().nodename}-{os.getpid()}-{kind}"
    temporary = os.path.join(requests, f".{name}.tmp")
    try:
        write_durably(temporary, header.encode(), resume)
        os.rename(temporary, os.path.join(requests, f"{name}.json"))
    except BaseException:
        remove(temporary)
        raise
    # Without it a crash may lose the new name, though the file itself is on the disk.
    sync_directory(requests)


def write_durably(path: str, *contents: bytes) -> None:
    """Write ``contents`` to a new file, which is on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for content in contents:
            unwritten = memoryview(content)
            while unwritten:
                unwritten = unwritten[os.write(descriptor, unwritten) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    """Write the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Remove a file. A file that is missing or cannot be removed is no error."""
    try:  # noqa: SIM105 - contextlib costs more to import than all the rest of this program
        os.unlink(path)
    except OSError:
        pass


def read_resume_file() -> tuple[bytes, str | None]:
    """Return the content of SLURM_RESUME_FILE and None, or no content and the reason."""
    path = os.environ.get("SLURM_RESUME_FILE")
    if not path:
        return b"", "SLURM_RESUME_FILE is not set"
    try:
        content = read_whole(path)
    except (OSError, ValueError) as error:
        return b"", f"{path}: {error}"
    return content, None if content else f"{path}: empty"


def quote(text: str) -> str:
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        from json import dumps as encode_basestring_ascii
    return encode_basestring_ascii(text)


def read_whole(path: str) -> bytes:
    """Return the content of a file; ValueError if it is too long. Never block, not even on a
    FIFO.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    blocks, size = [], 0
    try:
        while block := os.read(descriptor, 1 << 20):
            blocks.append(block)
            size += len(block)
            if size > RESUME_FILE_LIMIT_BYTES:
                raise ValueError(f"longer than {RESUME_FILE_LIMIT_BYTES} bytes")
    finally:
        os.close(descriptor)
    return b"".join(blocks)


def wake(state_dir: str, kind: str) -> None:
    """Wake the running services. If the daemon is down, it reads the request at its next start."""
    try:
        import _socket

        os.chdir(state_dir)  # a socket's whole path must fit in 107 bytes
        sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        sender.setblocking(False)
    except (ImportError, OSError):
        return
    for name in SOCKETS:
        try:  # noqa: SIM105
            sender.sendto(f'{{"event": "{kind}"}}'.encode(), name)
        except OSError:
            pass


def complain(state_dir: str | None, message: str) -> None:
    """Write the reason to stderr, which slurmctld drops, and to ``programs.log`` if possible."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {message}\n".encode(errors="replace")
    try:  # noqa: SIM105
        os.write(2, line)
    except OSError:
        pass
    if state_dir is not None:
        append(os.path.join(state_dir, "programs.log"), line)


def append(path: str, line: bytes) -> None:
    """Append to a log, which stops growing at LOG_LIMIT_BYTES."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < LOG_LIMIT_BYTES:
                os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError:
        pass


def clip(arguments: list[str]) -> str:
    """Return the arguments for a message, shortened to 200 characters."""
    text = " ".join(arguments)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
