"""pyslurm is taken only where it fits; what it answers becomes our values."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from msgspec import structs
from msgspec.structs import replace
from patience import eventually, patience

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import SlurmClientKind, SlurmSettings
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.slurm.client.chosen import open_slurm
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.pyslurm_child import node
from slurm_elastic.slurm.client.pyslurm_client import PyslurmClient, unusable

T = TypeVar("T")
Opened = Callable[..., PyslurmClient]
pytestmark = pytest.mark.usefixtures("guarded")

STANDIN = Path(__file__).parent / "standin"


@pytest.fixture
def slurm(tmp_path: Path) -> SlurmSettings:
    """Commands of a Slurm 25.11 that write their arguments down."""
    for name in ("scontrol", "squeue"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "slurm 25.11.1" && exit\n'
            f'echo "{name} $*" >>{tmp_path}/ran\n'
        )
        (tmp_path / name).chmod(0o755)
    return SlurmSettings(conf="/dev/null", bin_dir=str(tmp_path), client=SlurmClientKind.AUTO)


def package(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pyslurm for other processes."""
    (path / "packages").mkdir()
    (path / "packages" / "pyslurm.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(path / "packages"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("__version__ = '25.11.2'", ""),
        ("__version__ = '24.11.0'", "Slurm is 25.11, pyslurm is for 24.11"),
        ("__version__ = 'new'", "does not end in a Slurm version"),
        (
            "import sys; sys.exit('fatal: Could not establish a configuration source')",
            "it cannot be imported: fatal: Could not establish a configuration source",
        ),
    ],
)
def test_it_is_tried_in_another_process_first(
    tmp_path: Path, slurm: SlurmSettings, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    package(tmp_path, text, monkeypatch)
    found = unusable(slurm, (25, 11))
    assert found == why if not why else why in found


@pytest.mark.parametrize(
    ("client", "level"), [(SlurmClientKind.PYSLURM, "WARNING"), (SlurmClientKind.AUTO, "INFO")]
)
def test_where_it_does_not_fit_commands_are_run_and_the_log_says_so_once(
    tmp_path: Path,
    slurm: SlurmSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    client: SlurmClientKind,
    level: str,
) -> None:
    package(tmp_path, "__version__ = '24.11.0'", monkeypatch)
    caplog.set_level(logging.INFO)
    opened = open_slurm(SlurmSettings(conf="/dev/null", bin_dir=slurm.bin_dir, client=client))
    assert type(opened) is SlurmCli
    (line,) = caplog.records
    assert line.levelname == level
    assert "Slurm is 25.11, pyslurm is for 24.11" in line.getMessage()


def test_the_default_never_looks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    assert type(open_slurm(SlurmSettings(bin_dir="/none"))) is SlurmCli
    assert caplog.records == []


class Standin:
    """A pyslurm for the processes of clients: what it was asked for, and what befalls it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def befalls(self, what: str, words: str = "") -> None:
        """It ``hangs``, ends itself (``fatal``) or refuses (``broken``, with these words)."""
        (self._directory / what).write_text(words)

    def well(self) -> None:
        for path in self._directory.iterdir():
            if path.name != "calls":
                path.unlink()

    def calls(self) -> list[dict[str, Any]]:
        path = self._directory / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def pids(self) -> list[int]:
        return [call["pid"] for call in self.calls()]

    def await_call(self, number: int) -> int:
        """The process of that call, once it was made."""
        return eventually(lambda: self.pids()[number - 1 : number])[0]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    directory = tmp_path / "standin"
    directory.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))
    monkeypatch.setenv("PYSLURM_STANDIN", str(directory))
    return Standin(directory)


@pytest.fixture
def opened(slurm: SlurmSettings, standin: Standin) -> Iterator[Opened]:
    """Clients with a time limit (s)."""
    with contextlib.ExitStack() as closing:

        def make(limit: float = 60.0, stop: threading.Event | None = None) -> PyslurmClient:
            client = PyslurmClient(replace(slurm, command_timeout=limit), stop)
            closing.callback(client.close)
            return client

        yield make


def test_nodes_are_one_call_in_a_process_that_is_kept(opened: Opened, standin: Standin) -> None:
    client = opened()
    node = client.nodes(["pub1", "gone"])["pub1"]
    assert node.states == {"MIXED", "CLOUD", "POWERING_UP"}
    assert (node.cpus, node.memory, node.partitions) == (4, 7000, ("burst",))
    assert (node.address, node.port) == ("10.0.0.1", 7001)
    assert (node.weight, node.comment) == (1010, "")
    assert (node.reason, node.last_busy, node.boot_time) == ("", 100.0, 0.0)
    assert client.calls == {"pyslurm": 1}
    client.nodes()
    assert len(set(standin.pids())) == 1
    assert os.getpid() not in standin.pids()
    assert {call["conf"] for call in standin.calls()} == {"/dev/null"}
    assert "pyslurm" not in sys.modules


def test_updates_that_it_has_words_for_are_one_call(
    tmp_path: Path, opened: Opened, standin: Standin
) -> None:
    client = opened()
    client.update_nodes(["a", "b"], state="DRAIN", reason="x")
    client.update_nodes(["a"], state="POWER_DOWN_ASAP")
    client.update_nodes(["a"], state="IDLE")
    client.update_nodes(["a"], reason="y")
    client.update_nodes([], state="DRAIN")
    assert [(call["names"], call["changes"]) for call in standin.calls()] == [
        (["a", "b"], {"state": "DRAIN", "reason": "x"}),
        (["a"], {"state": "POWER_DOWN_ASAP"}),
    ]
    assert (tmp_path / "ran").read_text().splitlines() == [
        "scontrol update nodename=a state=IDLE",
        "scontrol update nodename=a reason=y",
    ]


def test_its_errors_are_slurm_errors_of_the_same_process(opened: Opened, standin: Standin) -> None:
    client = opened()
    standin.befalls("broken", "Unable to contact slurm controller")
    with pytest.raises(SlurmError, match="Unable to contact") as raised:
        client.nodes()
    assert raised.value.unanswered
    standin.befalls("broken", "Invalid node name specified")
    with pytest.raises(SlurmError, match=r"pyslurm Nodes.modify DRAIN: exit 1: Invalid") as raised:
        client.update_nodes(["a"], state="DRAIN")
    assert not raised.value.unanswered
    assert len(set(standin.pids())) == 1


def test_a_call_that_hangs_is_given_up_with_its_process(opened: Opened, standin: Standin) -> None:
    """Python's lock is held by the other process alone, and a new one answers next."""
    client = opened(3.0)
    standin.befalls("hangs")
    for call in (client.nodes, lambda: client.update_nodes(["a"], state="DRAIN")):
        with pytest.raises(SlurmError, match="timed out: no answer in") as raised:
            call()
        assert raised.value.unanswered
    hung = standin.pids()  # on a busy machine one may be given up before it came to its call
    assert hung
    assert len(set(hung)) == len(hung)
    assert all(map(gone, hung))
    standin.well()
    assert eventually(lambda: set(opened().nodes())) == {"pub1"}


def test_others_go_on_meanwhile(opened: Opened, standin: Standin) -> None:
    stop = threading.Event()
    client = opened(stop=stop)
    standin.befalls("hangs")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.nodes)
        standin.await_call(1)
        began = time.monotonic()
        assert client.version() == (25, 11), "a command of Slurm's"
        stop.set()
        with pytest.raises(SlurmError, match="no answer in"):
            waiting.result()
    with pytest.raises(SlurmError, match="the service is ending"):
        client.nodes()
    assert time.monotonic() - began < patience(20), "the service may end"


@pytest.mark.parametrize("how", ["fatal", "ended"])
def test_a_process_that_ends_by_itself_is_no_answer_and_is_followed_by_another(
    opened: Opened, standin: Standin, how: str
) -> None:
    client = opened()
    standin.befalls("fatal" if how == "fatal" else "hangs")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(client.nodes)
        first = standin.await_call(1)
        if how == "ended":
            os.kill(first, signal.SIGTERM)  # as systemd does, which ends all of a service's at once
        with pytest.raises(SlurmError, match=r"no answer, its process has ended \((1|-15)\)") as e:
            asked.result()
    assert e.value.unanswered
    standin.well()
    assert set(client.nodes()) == {"pub1"}
    assert gone(first)


def test_a_service_with_many_open_files_is_answered(opened: Opened) -> None:
    """select(2) takes no descriptor from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with contextlib.ExitStack() as closing:
        closing.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            closing.enter_context(open(os.devnull, "rb"))
        assert set(opened().nodes()) == {"pub1"}


def test_nothing_is_left_of_processes_that_were_ended(opened: Opened, standin: Standin) -> None:
    client = opened(0.3)
    standin.befalls("hangs")

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(5):
        with pytest.raises(SlurmError):
            client.nodes()
    client.close()
    assert descriptors() == before
    assert all(map(gone, standin.pids())), "one that nobody waited for would still be there"


def test_it_ends_with_the_service_that_is_killed(slurm: SlurmSettings, standin: Standin) -> None:
    program = (
        "import sys; from slurm_elastic.config import SlurmSettings;"
        "from slurm_elastic.slurm.client.pyslurm_client import PyslurmClient;"
        f"client = PyslurmClient(SlurmSettings(conf='/dev/null', bin_dir={slurm.bin_dir!r}));"
        "client.nodes(); print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"ready\n"
        (child,) = standin.pids()
        assert not gone(child)
        service.kill()
    eventually(lambda: gone(child))


def test_what_is_read_of_a_node_is_what_the_standin_has() -> None:
    """Its fields are compared with the real ones where there is a pyslurm (test_newer_slurm.py)."""
    fields = standins_node()
    read: set[str] = set()

    class Recorder:
        def __getattr__(self, name: str) -> object:
            read.add(name)
            return fields[name]

    node(Recorder())
    assert read == set(fields)


def test_each_field_of_a_node_is_read() -> None:
    """Commands read them all, and the two clients have to tell the same."""
    words = {"reason": "maintenance", "reason_user": "ada", "comment": "row 4"}
    times = {"boot_time": 90, "reason_time": 95}
    read = structs.asdict(node(SimpleNamespace(**(standins_node() | words | times))))
    unread = structs.asdict(SlurmNode(name="", states=frozenset()))
    assert [name for name in read if read[name] == unread[name]] == []


def standins_node() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("standin", STANDIN / "pyslurm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fields: dict[str, Any] = module.NODE
    return fields
