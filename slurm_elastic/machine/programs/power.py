#!/usr/bin/python3 -IS
"""The program that slurmctld runs as ResumeProgram, SuspendProgram and ResumeFailProgram.

It is installed as a copy under three names, ``slurm-elastic-resume``, ``-suspend`` and
``-resume-fail``; the name says what is asked for. It writes one durable file into ``requests/`` of
the state directory (form: slurm_elastic/state/spool.py), wakes the daemon and ends: slurmctld kills
these programs after a while, and SLURM_RESUME_FILE lives no longer than they do (slurm.conf(5)). It
takes no lock, uses no network, starts no child, and does not need the daemon. It uses the standard
library only, and little of that: importing ``socket`` and ``json`` instead of only their C parts
would double the start-up time.

Exit 0: the request is on the disk. Exit 1: it is not, and the reason is on stderr and in
``programs.log``. Slurm does not repeat the call: the nodes time out (ResumeTimeout) and their jobs
are requeued.
"""

import os
import sys
import time

KINDS = ("resume", "suspend", "resume-fail")
SOCKETS = ("wake.sock", "ckptman.sock")
LOG_LIMIT = 1 << 20
RESUME_FILE_LIMIT = 64 << 20


class RequestError(Exception):
    """The request cannot be kept; the text says why."""


def main(argv: list[str]) -> int:
    """Keep the request of ``argv``; the exit code."""
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
    """The kind of request, which the program's name tells."""
    kind = os.path.basename(program).removeprefix("slurm-elastic-")
    if kind not in KINDS:
        raise RequestError(f"must be named slurm-elastic-KIND, KIND one of {', '.join(KINDS)}")
    return kind


def hostlist_of(argv: list[str]) -> str:
    """The nodes. Slurm gives one hostlist; several arguments are joined."""
    hostlist = ",".join(name for name in argv[1:] if name)
    if not hostlist:
        raise RequestError(f"usage: {argv[0]} HOSTLIST")
    return hostlist


def read_setting(directory: str, wanted: str) -> str:
    """The value of ``wanted`` in the file ``settings`` of ``directory``."""
    path = os.path.join(directory, "settings")
    found = ""
    with open(path, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            key, _, value = line.rstrip("\n").partition("=")
            if key == wanted:
                found = value
    if not found:
        raise RequestError(f"{path}: no value for {wanted}")
    return found


def store(requests: str, kind: str, hostlist: str) -> None:
    """Write the request so that it survives a crash of this host; if that fails, leave nothing
    behind.
    """
    received = time.time_ns()
    resume, error = read_resume_file() if kind == "resume" else (b"", None)
    # We copy the resume file as it is: with thousands of jobs, parsing it would take longer than
    # all else here. The daemon has the time.
    head = (
        f'{{"kind": "{kind}", "hostlist": {quote(hostlist)}, "received": {received / 1e9!r}, '
        f'"resume_file_error": {quote(error) if error else "null"}}}\n'
    )
    name = f"{received}-{os.uname().nodename}-{os.getpid()}-{kind}"  # two heads may write here
    temporary = os.path.join(requests, f".{name}.tmp")
    try:
        write_durably(temporary, head.encode(), resume)
        os.rename(temporary, os.path.join(requests, f"{name}.json"))
    except BaseException:
        remove(temporary)
        raise
    sync_directory(requests)


def write_durably(path: str, *parts: bytes) -> None:
    """Make a file of ``parts`` that is on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    """Have the names in a directory on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Remove a file that may be missing."""
    try:  # noqa: SIM105 - contextlib costs more to import than all the rest of this program
        os.unlink(path)
    except OSError:
        pass


def read_resume_file() -> tuple[bytes, str | None]:
    """The content of SLURM_RESUME_FILE and None; or nothing, and the reason."""
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
    """The content of a file; ValueError if it is too long. It never waits, not even for a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    parts, size = [], 0
    try:
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
            size += len(part)
            if size > RESUME_FILE_LIMIT:
                raise ValueError(f"longer than {RESUME_FILE_LIMIT} bytes")
    finally:
        os.close(descriptor)
    return b"".join(parts)


def wake(state_dir: str, kind: str) -> None:
    """Tell the running services. Without the daemon the request waits for its next start."""
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
    """Say why on stderr, which slurmctld does not keep, and in ``programs.log`` if possible."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {message}\n".encode(errors="replace")
    try:  # noqa: SIM105
        os.write(2, line)
    except OSError:
        pass
    if state_dir is not None:
        append(os.path.join(state_dir, "programs.log"), line)


def append(path: str, line: bytes) -> None:
    """Add to a log, which stops growing at LOG_LIMIT bytes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < LOG_LIMIT:
                os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError:
        pass


def clip(arguments: list[str]) -> str:
    """The arguments for a message, shortened."""
    text = " ".join(arguments)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
