"""pyslurm is taken only where it fits; what it answers becomes our values."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from slurm_elastic.config import Client, SlurmSettings
from slurm_elastic.errors import SlurmError
from slurm_elastic.slurm.cli import SlurmCli
from slurm_elastic.slurm.client import open_slurm
from slurm_elastic.slurm.pyslurm_client import PyslurmClient, unusable

pytestmark = pytest.mark.usefixtures("guarded")

NODE = {
    "name": "pub1", "state": "MIXED+CLOUD+POWERING_UP", "reason": None, "reason_user": None,
    "partitions": ["burst"], "address": "10.0.0.1", "total_cpus": 4, "real_memory": 7000,
    "last_busy_time": 100, "boot_time": None, "weight": 1010, "comment": None,
}  # fmt: skip


@pytest.fixture
def slurm(tmp_path: Path) -> SlurmSettings:
    """Commands of a Slurm 25.11 that write their arguments down."""
    for name in ("scontrol", "squeue"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "slurm 25.11.1" && exit\n'
            f'echo "{name} $*" >>{tmp_path}/ran\n'
        )
        (tmp_path / name).chmod(0o755)
    return SlurmSettings(conf="/dev/null", bin_dir=str(tmp_path), client=Client.AUTO)


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


@pytest.mark.parametrize(("client", "level"), [(Client.PYSLURM, "WARNING"), (Client.AUTO, "INFO")])
def test_where_it_does_not_fit_commands_are_run_and_the_log_says_so_once(
    tmp_path: Path,
    slurm: SlurmSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    client: Client,
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


class Standin(ModuleType):
    """As much of pyslurm 25.11's names as the client uses."""

    class PyslurmError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pyslurm")
        self.sent: list[tuple[list[str], dict[str, str]]] = []
        self.broken = ""
        outer = self

        class Nodes:
            def __init__(self, names: list[str]) -> None:
                self._names = names

            @staticmethod
            def load() -> dict[str, SimpleNamespace]:
                if outer.broken:
                    raise outer.PyslurmError(outer.broken)
                return {"pub1": SimpleNamespace(**NODE)}

            def modify(self, changes: dict[str, str]) -> None:
                if outer.broken:
                    raise outer.PyslurmError(outer.broken)
                outer.sent.append((self._names, changes))

        self.Nodes = Nodes
        self.Node = dict


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Standin:
    made = Standin()
    monkeypatch.setitem(sys.modules, "pyslurm", made)
    monkeypatch.setenv("SLURM_CONF", "")
    return made


def test_nodes_are_one_call(slurm: SlurmSettings, standin: Standin) -> None:
    client = PyslurmClient(slurm)
    node = client.nodes(["pub1", "gone"])["pub1"]
    assert node.states == {"MIXED", "CLOUD", "POWERING_UP"}
    assert (node.cpus, node.memory, node.partitions) == (4, 7000, ("burst",))
    assert (node.weight, node.comment) == (1010, "")
    assert (node.reason, node.last_busy, node.boot_time) == ("", 100.0, 0.0)
    assert client.calls == {"pyslurm": 1}


def test_updates_that_it_has_words_for_are_one_call(
    tmp_path: Path, slurm: SlurmSettings, standin: Standin
) -> None:
    client = PyslurmClient(slurm)
    client.update_nodes(["a", "b"], state="DRAIN", reason="x")
    client.update_nodes(["a"], state="POWER_DOWN_ASAP")
    client.update_nodes(["a"], state="IDLE")
    client.update_nodes(["a"], reason="y")
    client.update_nodes([], state="DRAIN")
    assert standin.sent == [
        (["a", "b"], {"state": "DRAIN", "reason": "x"}),
        (["a"], {"state": "POWER_DOWN_ASAP"}),
    ]
    assert (tmp_path / "ran").read_text().splitlines() == [
        "scontrol update nodename=a state=IDLE",
        "scontrol update nodename=a reason=y",
    ]


def test_its_errors_are_slurm_errors(slurm: SlurmSettings, standin: Standin) -> None:
    client = PyslurmClient(slurm)
    standin.broken = "Unable to contact slurm controller"
    with pytest.raises(SlurmError, match="Unable to contact"):
        client.nodes()
    with pytest.raises(SlurmError, match="Unable to contact"):
        client.update_nodes(["a"], state="DRAIN")
