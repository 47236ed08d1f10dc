"""libvirtd for tests, with libvirt's test driver and real qemu in it, and a server in front of it that
passes calls on, or lets them go wrong on the wire.

The frames are those of "libvirt RPC infrastructure" (libvirt.org/kbase/internals/rpc.html): a length,
a header of six words, a payload in XDR.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from needs import missing
from patience import patience

LIBVIRTD = shutil.which("libvirtd", path="/usr/sbin:/usr/bin")
QEMU = shutil.which("qemu-system-x86_64")
NOBODY = 65534
HEADER = struct.Struct(">IIIiIII")  # the length, program, version, procedure, type, serial, status
REMOTE = 0x20008086
CALL, REPLY = 0, 1
FAILED = 1
PROCEDURES = {
    "open": 1, "close": 2, "define": 350, "create": 9, "destroy": 12, "info": 16, "stats": 344,
    "volume": 93, "upload": 208, "domains": 273, "version": 157,
}  # fmt: skip
"""By our words, the numbers of remote_protocol.x."""
FROM_RPC, FROM_STORAGE, FROM_QEMU, FROM_ACCESS = 7, 18, 10, 52


@dataclass(frozen=True)
class Fault:
    """A fault of calls of ``procedures`` (words of PROCEDURES; none: all) that have the bytes
    ``match`` in them: an error (code, domain, message), silence, the connection's end, nonsense, or
    an answer that is late; ``after``: when it has been carried out.
    """

    procedures: tuple[str, ...] = ()
    error: tuple[int, int, str] | None = None
    silent: bool = False
    drop: bool = False
    garbage: bool = False
    delay: float = 0.0
    after: bool = False
    match: bytes = b""
    times: int | None = None

    def meets(self, procedure: int, payload: bytes) -> bool:
        known = [PROCEDURES[word] for word in self.procedures]
        return (not known or procedure in known) and self.match in payload

    @property
    def late_only(self) -> bool:
        return self.error is None and not (self.silent or self.drop or self.garbage)


@dataclass
class Proxy:
    path: Path
    upstream: Path
    faults: list[Fault] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    woken: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ends: list[socket.socket] = field(default_factory=list)

    def fail(self, *faults: Fault) -> None:
        with self._lock:
            self.faults[:] = faults

    def heal(self) -> None:
        """No fault any more; connections that were kept silent end."""
        silent = any(fault.silent for fault in self.faults)
        self.fail()
        self.woken.set()
        self.woken = threading.Event()
        if silent:
            self.cut()

    def cut(self) -> None:
        """All connections end."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def fault_for(self, procedure: int, payload: bytes) -> Fault | None:
        with self._lock:
            self.calls.append(procedure)
            for n, fault in enumerate(self.faults):
                if fault.meets(procedure, payload):
                    if fault.times is not None:
                        rest = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                        self.faults[n : n + 1] = rest
                    return fault
        return None

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self.upstream))
            except OSError:
                client.close()
                server.close()
                continue
            with self._lock:
                self._ends += [client, server]
            link = _Link(self, client, server)
            threading.Thread(target=link.asked, daemon=True).start()
            threading.Thread(target=link.answered, daemon=True).start()


class _Link:
    """One connection: calls go up, and come down with what a fault makes of their answers."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.pending: dict[int, Fault] = {}
        self.writing = threading.Lock()
        self.open = 2

    def done(self) -> None:
        """One way is at its end, so the other will be."""
        self.end()
        with self.writing:
            self.open -= 1
            if not self.open:
                self.client.close()
                self.server.close()

    def end(self) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def asked(self) -> None:
        while frame := _frame(self.client):
            _, program, _, procedure, kind, serial, _ = HEADER.unpack_from(frame)
            fault = None
            if program != REMOTE and any(f.silent for f in self.proxy.faults):
                continue  # nor is anybody told that it lives
            if program == REMOTE and kind == CALL:
                fault = self.proxy.fault_for(procedure, frame[HEADER.size :])
            if fault and not fault.after and not fault.late_only:
                self.strike(fault, frame)
                continue
            if fault:
                self.pending[serial] = fault
            with suppress(OSError):
                self.server.sendall(frame)
        self.done()

    def answered(self) -> None:
        while frame := _frame(self.server):
            *_, kind, serial, _ = HEADER.unpack_from(frame)
            fault = self.pending.pop(serial, None) if kind == REPLY else None
            if fault and fault.late_only:
                late = threading.Timer(fault.delay, self.write, (frame,))
                late.daemon = True
                late.start()
            elif fault:
                self.strike(fault, frame)
            else:
                self.write(frame)
        self.done()

    def strike(self, fault: Fault, frame: bytes) -> None:
        if fault.drop:
            self.end()
        elif fault.garbage:
            self.write(struct.pack(">I", 64) + b"<html>log in</html>".ljust(60, b"\0"))
        elif fault.error:
            self.write(_refusal(frame, *fault.error))

    def write(self, frame: bytes) -> None:
        with self.writing, suppress(OSError):
            self.client.sendall(frame)


def _frame(end: socket.socket) -> bytes:
    head = _bytes(end, 4)
    return head + _bytes(end, struct.unpack(">I", head)[0] - 4) if head else b""


def _bytes(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        try:
            more = end.recv(count - len(data))
        except OSError:
            return b""
        if not more:
            return b""
        data += more
    return data


def _refusal(frame: bytes, code: int, domain: int, message: str) -> bytes:
    """virNetMessageError in the answer to a call."""
    _, program, version, procedure, _, serial, _ = HEADER.unpack_from(frame)
    text = message.encode()
    padded = text.ljust(-(-len(text) // 4) * 4, b"\0")
    payload = struct.pack(">iiII", code, domain, 1, len(text)) + padded
    payload += struct.pack(">iIIIIiiI", 2, 0, 0, 0, 0, 0, 0, 0)
    length = HEADER.size + len(payload)
    return HEADER.pack(length, program, version, procedure, REPLY, serial, FAILED) + payload


@contextmanager
def running_proxy(path: Path, upstream: Path) -> Iterator[Proxy]:
    proxy = Proxy(path=path, upstream=upstream)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        thread = threading.Thread(target=proxy.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.heal()
            proxy.cut()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(patience(30))


class Daemon:
    """A libvirtd of nobody's, in a directory of its own, and what it may be asked by."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("", "run", "images"):
            (directory / name).mkdir(exist_ok=True)
            os.chown(directory / name, NOBODY, NOBODY)
        self.start()

    @property
    def socket(self) -> Path:
        return self.directory / "run" / "libvirt" / "libvirt-sock"

    def uri(self, driver: str, path: Path | None = None) -> str:
        """``driver``: ``test:///default`` or ``qemu:///session``."""
        kind, _, rest = driver.partition(":")
        return f"{kind}+unix:{rest}?socket={path or self.socket}"

    def start(self) -> None:
        assert LIBVIRTD is not None
        places = {
            "RUNTIME_DIR": "run",
            "CONFIG_HOME": "config",
            "CACHE_HOME": "cache",
            "DATA_HOME": "data",
        }
        environment = {f"XDG_{key}": str(self.directory / place) for key, place in places.items()}
        environment |= {"PATH": os.environ["PATH"], "HOME": str(self.directory)}
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [LIBVIRTD], env=environment, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, user=NOBODY, group=NOBODY, extra_groups=[], start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + patience(60)
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > deadline:
                log_text = (self.directory / "log").read_text()
                pytest.skip(f"libvirtd does not run here: {log_text[-500:]}")
            time.sleep(0.05)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def renew(self) -> None:
        """Another one where it has ended by itself: that spoils one test, not those after it."""
        if self.process.poll() is not None:
            self.start()

    def stop(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience(30))
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Machines of qemu go on meanwhile."""
        self.stop()
        self.start()


@contextmanager
def running_libvirtd() -> Iterator[Daemon]:
    """Skips where there is none. All that it started ends with it."""
    if LIBVIRTD is None:
        pytest.skip(missing("libvirtd"))
    directory = Path(tempfile.mkdtemp(prefix="se-libvirt-"))
    try:
        daemon = Daemon(directory)
        yield daemon
        daemon.stop()
    finally:
        started = directory / "run" / "libvirt"  # the log's daemon would outlive us by two minutes
        for pid_file in [started / "virtlogd.pid", *(started / "qemu" / "run").glob("*.pid")]:
            with suppress(ValueError, ProcessLookupError, FileNotFoundError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
