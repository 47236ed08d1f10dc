"""Programs put on the disk what no power cut may take, before they go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ledger_cases import spec
from patience import patience
from power_cut import Disk, Names

from slurm_elastic.machine.local.records import LocalRegister, read_records
from slurm_elastic.machine.local.wire import MachineRecord
from slurm_elastic.model.cluster import InstanceState, Market
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.spool import Spool
from tests.machine.programs.installed import Installed

REPO = Path(__file__).parents[1]


def run(disk: Disk, code: str, *arguments: object) -> None:
    """Python code of ours that ends without tidying anything up, as the power does."""
    command = [sys.executable, "-c", f"import os, sys\n{code}\nos._exit(0)", *map(str, arguments)]
    paths = os.pathsep.join((str(REPO), str(REPO / "tests")))
    env = {**os.environ, **disk.env, "PYTHONPATH": paths}
    subprocess.run(command, env=env, check=True, timeout=patience(120))


@pytest.mark.parametrize("names", Names)
def test_a_request_that_slurmctld_was_told_is_kept_survives(tmp_path: Path, names: Names) -> None:
    installed = Installed(tmp_path)
    disk = Disk(installed.state, tmp_path / "cut")
    resume = tmp_path / "resume.json"
    resume.write_text('{"jobs": [{"job_id": 7, "nodes": "pub[1-2]"}], "all_nodes": "pub[1-2]"}')
    env = {**disk.env, "SLURM_RESUME_FILE": str(resume)}
    assert installed.run("slurm-elastic-resume", "pub[1-2]", env=env) == (0, "")
    (request,) = Spool(disk.after_cut(tmp_path / "after", names)).pending()
    assert (request.kind, request.nodes) == ("resume", ("pub1", "pub2"))
    assert request.jobs == {7: ("pub1", "pub2")}


INTEND = """
from ledger_cases import spec
from pathlib import Path
from slurm_elastic.state.ledger import Ledger
Ledger(Path(sys.argv[1]) / "ledger.db").launches.record_intent(spec(), "r1", 5.0)
"""


@pytest.mark.parametrize("names", Names)
@pytest.mark.parametrize("ledger", ["new", "known"])
def test_a_launchs_intent_survives(tmp_path: Path, ledger: str, names: Names) -> None:
    """Also in a ledger that was made a moment ago: the cloud is called next."""
    state = tmp_path / "state"
    state.mkdir()
    if ledger == "known":
        Ledger(state / "ledger.db").close()
    disk = Disk(state, tmp_path / "cut")
    run(disk, INTEND, state)
    after = Ledger(disk.after_cut(tmp_path / "after", names) / "ledger.db")
    (found,) = after.launches.open()
    assert (found.generation, found.nodes) == ("g1", spec().nodes)
    after.close()


SAVE = """
from pathlib import Path
from slurm_elastic.machine.local.records import LocalRegister
from test_power_cut import RECORD
LocalRegister(Path(sys.argv[1])).save(RECORD, why="new")
"""
RECORD = MachineRecord(
    id="m-1", cluster="c", node="n1", generation="g1", index=0, pool="p", instance_type="slurmd",
    market=Market.RESERVED, price=0.1, jobs=(7,), state=InstanceState.PENDING, launched=1.0, due=2.0,
)  # fmt: skip


@pytest.mark.parametrize("names", Names)
def test_a_local_machines_file_is_the_new_one(tmp_path: Path, names: Names) -> None:
    register = LocalRegister(tmp_path / "machines")
    register.save(RECORD, why="old")
    register.close()
    disk = Disk(tmp_path / "machines", tmp_path / "cut")
    run(disk, SAVE, tmp_path / "machines")
    (found,) = read_records(disk.after_cut(tmp_path / "after", names))
    assert str(found.why) == "new"


WRITE = """
os.chdir(sys.argv[1])
with open("kept", "a") as kept, open("new", "w"):
    kept.write("more")
"""


def test_what_was_not_synced_is_lost(tmp_path: Path) -> None:
    """The cut itself takes what it should."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "kept").write_text("old")
    disk = Disk(root, tmp_path / "cut")
    run(disk, WRITE, root)
    assert (root / "kept").read_text() == "oldmore"
    synced = disk.after_cut(tmp_path / "synced", Names.SYNCED)
    assert {path.name: path.read_text() for path in synced.iterdir()} == {"kept": "old"}
    latest = disk.after_cut(tmp_path / "latest", Names.LATEST)
    assert {path.name: path.read_text() for path in latest.iterdir()} == {"kept": "old", "new": ""}
