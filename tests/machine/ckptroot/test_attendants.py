"""The first node's orders to the others, over an srun that says what the test says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import attendants as module
from slurm_elastic.machine.ckptroot.attendants import FACTS, Attendants
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.job_nodes import JobNode, JobNodes
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused

from .helpers import ROOT, eventually

pytestmark = ROOT
NODES = JobNodes(
    JobNode("n1", "10.0.0.1"), (JobNode("n2", "10.0.0.2"), JobNode("n3", "10.0.0.3"))
)  # fmt: skip
CALLER = Caller(
    job=7, uid=os.geteuid(), gid=os.getegid(), user="us", groups=tuple(os.getgroups()),
    environment={b"SLURM_JOB_ID": b"7", b"SLURM_NTASKS": b"9", b"HOME": b"/home/us"},
)  # fmt: skip
SRUN = """#!/usr/bin/python3 -IS
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
json.dump([sys.argv[1:], dict(os.environ)], open(f"{here}/called", "w"))
def say(node, **what):
    print(json.dumps({"node": node, **what}), flush=True)
if os.path.exists(f"{here}/refuses"):
    sys.exit("srun: error: Unable to create step")
for node in (1, 2):
    say(node, event="hello", id=0, library="abc")
for line in sys.stdin:
    order = json.loads(line)
    print("of a rank", file=sys.stderr, flush=True)
    for node in (1, 2):
        if not os.path.exists(f"{here}/away-{node}"):
            more = {"refused": "no"} if order["do"] == f"refuse-{node}" else {}
            say(node, event="done", id=order["id"], **more)
            say(node, event="ended", status=0, names=[f"start-{node}"])
print("last words of a rank", end="", file=sys.stderr, flush=True)
open(f"{here}/over", "w").close()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "t" / "7").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def made(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attendants]:
    monkeypatch.setattr(module, "_LOOK_TIMEOUT_S", 1.0)
    site = HelperSite(cluster="t", directory=place, key=b"", reader=(0, 0),
                      scontrol=str(place / "scontrol"))  # fmt: skip
    attendants = Attendants(site, CALLER, NODES)
    yield attendants
    attendants.close()


def test_they_are_one_step_of_the_job_on_its_other_nodes(made: Attendants, place: Path) -> None:
    hellos = made.start(20_001)
    assert [hello["library"] for hello in hellos] == ["abc", "abc"]
    facts = place / "t" / "7" / FACTS
    assert json.loads(facts.read_text()) == {
        "address": "10.0.0.1", "port": 20_001, "nodes": ["n2", "n3"],
    }  # fmt: skip
    assert facts.stat().st_mode & 0o777 == 0o600
    words, environment = json.loads((place / "called").read_text())
    assert {"--jobid=7", "--nodes=2", "--ntasks=2", "--nodelist=n2,n3", "--overlap"} < set(words)
    assert words[-1] == "attend"
    assert "SLURM_NTASKS" not in environment, "an option of the job's own steps"
    assert environment["SLURM_JOB_ID"] == "7"
    made.close()
    eventually((place / "over").exists)


def test_an_order_is_answered_by_all_and_other_reports_are_kept(
    made: Attendants, capfd: pytest.CaptureFixture[str]
) -> None:
    made.start(20_001)
    assert [answer["node"] for answer in made.ask({"do": "look"})] == [1, 2]
    ended: list[int] = []
    eventually(lambda: ended.extend(r["node"] for r in made.reports()) or len(ended) == 2)
    assert sorted(ended) == [1, 2]
    with pytest.raises(RequestRefused, match=r"^n3: no$"):
        made.ask({"do": "refuse-2"})
    assert made.lost() == ""
    assert "of a rank\n" in capfd.readouterr().err
    made.close()
    assert "last words of a rank\n" in capfd.readouterr().err


def test_a_node_that_does_not_answer_is_lost(made: Attendants, place: Path) -> None:
    made.start(20_001)
    (place / "away-2").touch()
    with pytest.raises(RequestRefused, match=r"^n3 does not answer: no answer in time$"):
        made.ask({"do": "look"})
    assert made.lost() == "n3"
    (place / "away-2").unlink()
    assert made.lost() == ""


def test_what_srun_says_is_the_reason_and_not_in_the_jobs_output(
    made: Attendants, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "refuses").touch()
    with pytest.raises(
        RequestRefused, match=r"^n2 does not answer: srun: error: Unable to create step$"
    ):
        made.start(20_001)
    assert made.has_ended
    assert capfd.readouterr().err == ""


def test_answers_that_are_read_late_or_as_the_last_of_the_step_count(
    made: Attendants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scontrol suspend stops us, too."""
    made.start(20_001)
    monkeypatch.setattr(module, "_LOOK_TIMEOUT_S", -1.0)
    read = made._read

    def late() -> Iterator[dict[str, object]]:
        reports: list[dict[str, object]] = []
        eventually(lambda: reports.extend(read()) or len(reports) >= 2)
        return iter(reports)

    monkeypatch.setattr(made, "_read", late)
    monkeypatch.setattr(module, "_write", lambda d, content: os.write(d, content))
    assert made.lost() == ""
