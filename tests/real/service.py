"""The services and commands of a real site: each is a process that is forked with all modules loaded."""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import pwd
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from slurm_elastic.sandbox.build import USER
from tests.real import cloud
from tests.real.compared import have_compared

MODULES = {"elasticd": "daemon", "ckptman": "ckptman"}
PRELOADED = (
    "daemon", "ckptman", "main", "clear", "pause", "resume", "limit", "drain", "replace", "migrate", "ckpt",
)  # fmt: skip
PAUSE_S = 0.05
DIFFERENCES = Path("/tmp/site/differences")


class Start(NamedTuple):
    """The start of a program: ``environment`` is all of it, ``clouds`` the socket of the clouds."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    clouds: str
    log: str
    user: str


class Forks:
    """A process without threads, which forks the others; make it before the first thread."""

    def __init__(self) -> None:
        for name in PRELOADED:
            importlib.import_module(f"slurm_elastic.cli.{name}")
        importlib.import_module("slurm_elastic.providers.fake.provider")
        importlib.import_module("slurm_elastic.checkpointers.fake")
        ours, theirs = multiprocessing.Pipe()
        self._lock, self._connection = threading.Lock(), ours
        if os.fork() == 0:
            ours.close()
            _serve(theirs)
        theirs.close()

    def start(self, begin: Start) -> Forked:
        return Forked(self, int(self.ask("start", begin)))

    def ask(self, *question: Any) -> Any:
        with self._lock:
            self._connection.send(question)
            return self._connection.recv()


class Forked:
    """A process of ``Forks``."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks, self._pid = forks, pid
        self.exit_code: int | None = None

    def is_alive(self) -> bool:
        if self.exit_code is None:
            self.exit_code = self._forks.ask("code", self._pid)
        return self.exit_code is None

    def send(self, number: int) -> None:
        if self.is_alive():
            os.kill(self._pid, number)

    def join(self, seconds: float) -> bool:
        """Whether it has ended in that time."""
        until = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < until:
            time.sleep(PAUSE_S)
        return not self.is_alive()


def _serve(connection: Connection) -> NoReturn:
    while True:
        try:
            word, value = connection.recv()
        except EOFError:
            os._exit(0)
        if word == "start":
            pid = os.fork()
            if pid == 0:
                connection.close()
                _become(value)
            connection.send(pid)
        else:
            pid, status = os.waitpid(value, os.WNOHANG)
            connection.send(os.waitstatus_to_exitcode(status) if pid else None)


def _become(begin: Start) -> NoReturn:
    """Run that program, as execve would."""
    code = 1
    try:
        _prepare(begin)
        code = _main(begin)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as an interpreter does
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    os._exit(code)


def _prepare(begin: Start) -> None:
    log = os.open(begin.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(log, descriptor)
        setattr(sys, name, io.TextIOWrapper(open(descriptor, "wb", 0), write_through=True))  # noqa: SIM115
    os.setsid()
    os.chdir("/")
    if begin.user == USER:
        account = pwd.getpwnam(USER)
        os.initgroups(USER, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    os.environ.clear()
    os.environ.update(begin.environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["slurm-elastic", *begin.argv]


def _main(begin: Start) -> int:
    provider: Any = importlib.import_module("slurm_elastic.providers.fake.provider")
    provider.FakeProvider = cloud.provider_of(begin.clouds, begin.name)
    if begin.name in MODULES:
        have_compared(DIFFERENCES, begin.name)
    module = importlib.import_module(f"slurm_elastic.cli.{MODULES.get(begin.name, 'main')}")
    return int(module.main(list(begin.argv)) or 0)
