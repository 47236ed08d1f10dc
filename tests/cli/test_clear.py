"""``clear``: what cools down or is paused ends, for those who may, and the nodes are looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_cases import instance, offer
from status_cases import NOW, busy_ledger, config, config_file

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.cli.main import main
from slurm_elastic.cli.orders import clear
from slurm_elastic.cli.orders.giving_orders import require_trusted
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import BREAKER, COOL_DOWN, Exclusion
from slurm_elastic.model.journal_owner import JournalOwner
from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.policies.launch.exclusions import strikes_of
from slurm_elastic.state.audit_trail import nodes_of
from slurm_elastic.state.ledger import Ledger

SPOT = "aws/c6i.xlarge/eu-west-1b/spot"
QUOTA = "aws/*/*/on-demand"
NEAR = "onprem/local/rack1/reserved"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = busy_ledger(tmp_path / "ledger.db")
    for key in (QUOTA, NEAR):
        made.exclusions.add(
            Exclusion(
                kind=COOL_DOWN,
                scope=key,
                until=NOW + 900,
                code="Quota",
                cause=Quoted(text="8 of 8"),
                count=3,
            )
        )
    yield made
    made.close()


def cooling(ledger: Ledger) -> set[str]:
    return {c.scope for c in ledger.exclusions.cool_downs(NOW)}


def test_one_offer(tmp_path: Path, ledger: Ledger) -> None:
    lines = clear.clear(config(tmp_path), ledger, [SPOT], NOW, "root")
    assert lines[0] == f"cool-down of {SPOT}"
    assert cooling(ledger) == {QUOTA, NEAR}
    assert strikes_of(ledger.exclusions.all(), SPOT, NOW) == 0, "the next one starts anew"
    assert {h.until for h in ledger.exclusions.holds()} == {NOW}, "held nodes are looked at"
    assert len(ledger.exclusions.breakers()) == 2


def test_a_pool_with_its_offers(tmp_path: Path, ledger: Ledger) -> None:
    lines = clear.clear(config(tmp_path), ledger, ["general"], NOW, "root")
    assert "failed boots of pool general" in lines
    assert cooling(ledger) == {NEAR}
    assert [b.scope for b in ledger.exclusions.breakers()] == ["rack"]
    assert "2 holds of nodes of pool general" in lines
    (decision,) = ledger.decisions.about("pub7")
    assert decision.kind == "cleared"
    assert compress(nodes_of(decision)), "explain lists these: no offer is among them"
    assert [d.kind for d in ledger.decisions.about("pool:general")] == ["cleared"]


def test_a_cloud_with_all_of_its_pools(tmp_path: Path, ledger: Ledger) -> None:
    clear.clear(config(tmp_path), ledger, ["aws"], NOW, "root")
    assert cooling(ledger) == {NEAR}
    assert [b.scope for b in ledger.exclusions.breakers()] == ["rack"]


def test_all(tmp_path: Path, ledger: Ledger) -> None:
    clear.clear(config(tmp_path), ledger, None, NOW, "root")
    assert cooling(ledger) == set()
    assert ledger.exclusions.breakers() == ()
    assert clear.clear(config(tmp_path), ledger, None, NOW, "root")[:1] == (
        "2 holds of nodes of pool general",
    )


def test_a_pool_that_the_configuration_has_no_more(tmp_path: Path, ledger: Ledger) -> None:
    ledger.exclusions.add(Exclusion(kind=BREAKER, scope="former", count=10, until=NOW + 5))
    assert clear.clear(config(tmp_path), ledger, ["former"], NOW, "root") == (
        "failed boots of pool former",
    )


def test_what_is_unknown_clears_nothing(tmp_path: Path, ledger: Ledger) -> None:
    with pytest.raises(
        SlurmElasticError, match=r"'nope' is no offer .* choose from aws/\*/\*/on-d"
    ):
        clear.clear(config(tmp_path), ledger, [SPOT, "nope"], NOW, "root")
    assert cooling(ledger) == {SPOT, QUOTA, NEAR}


@pytest.mark.skipif(os.geteuid() != 0, reason="root may")
def test_the_command(
    tmp_path: Path,
    ledger: Ledger,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clear.time, "time", lambda: NOW)
    file = str(config_file(tmp_path))
    dry = ["clear", "rack", "--dry-run", "--config", file]
    assert main(dry) == 0
    assert capsys.readouterr().out == (
        f"would be cleared: cool-down of {NEAR}\nwould be cleared: failed boots of pool rack\n"
        "dry run: nothing was changed\n"
    )
    assert main(["clear", "rack", "--config", file]) == 0
    (record,) = ledger.decisions.about(NEAR)
    assert str(record.cause).startswith("by root: cool-down of ")
    said = capsys.readouterr().out
    assert said == (
        f"cleared: cool-down of {NEAR}\ncleared: failed boots of pool rack\n"
        "slurm-elasticd acts on it within 30s\n"
    )
    assert main(["clear", "rack", "--config", file]) == 0
    assert capsys.readouterr().out == "nothing was cooling down or paused\n"
    assert main(["clear", "--config", file]) == 2
    assert "nothing to clear" in capsys.readouterr().err
    assert main(["clear", "x", "--config", file]) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="root may")
def test_machines_of_a_former_cloud_are_gone_by_the_operators_word(
    tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    live = {m.instance.id for m in ledger.machines.live()}
    for number in (1, 2):
        left = instance(f"far-{number}", f"x{number}", bought=offer(cloud="far"))
        ledger.machines.adopt(left, "", NOW)
    file = str(config_file(tmp_path))
    assert main(["clear", "--gone", "far-1", "--dry-run", "--config", file]) == 0
    assert capsys.readouterr().out.startswith("would be cleared: machine far-1 of cloud far")
    assert "far-1" in {m.instance.id for m in ledger.machines.live()}
    assert main(["clear", "--gone", "far-1", "--config", file]) == 0
    said = capsys.readouterr().out
    assert said == (
        "cleared: machine far-1 of cloud far, node x1\nslurm-elasticd acts on it within 30s\n"
    )
    assert {m.instance.id for m in ledger.machines.live()} == {*live, "far-2"}
    assert [d.kind for d in ledger.decisions.about("x1")] == ["cleared"]
    assert main(["clear", "--gone", "far", "--config", file]) == 0
    assert {m.instance.id for m in ledger.machines.live()} == live
    capsys.readouterr()
    assert main(["clear", "--gone", "--all", "--config", file]) == 2
    assert "--all cannot be combined with --gone" in capsys.readouterr().err
    assert main(["clear", "--gone", "--config", file]) == 2


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("aws", r"'aws' belongs to a configured cloud: the daemon sees in the cloud's list"),
        ("far", r"'far' is no machine, launch or cloud that has left .* choose from: none"),
    ],
)
def test_only_what_has_left_the_configuration_is_gone_by_word(
    tmp_path: Path, ledger: Ledger, subject: str, said: str
) -> None:
    live = ledger.machines.live()
    with pytest.raises(SlurmElasticError, match=said):
        clear.gone(config(tmp_path), ledger, [subject], NOW, 0)
    with pytest.raises(SlurmElasticError, match="belongs to a configured cloud"):
        clear.gone(config(tmp_path), ledger, [live[0].instance.id], NOW, 0)
    assert ledger.machines.live() == live


def test_only_root_and_slurms_user_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(SlurmElasticError, match="this is for root and slurm"):
        require_trusted(config(tmp_path))


def test_a_job_that_growth_does_not_count(tmp_path: Path, ledger: Ledger) -> None:
    bought = Purchase(first_node="pub7", at=NOW, open=frozenset())
    rows = [UnhelpedJob(job=n, asks="1", since=NOW, nodes=("pub7",)) for n in (17, 18, 19)]
    ledger.growth_guard.judge(bought, rows)
    lines = clear.clear(config(tmp_path), ledger, ["job:17"], NOW, "root")
    assert lines == ("growth counts job 17 again",)
    assert [d.kind for d in ledger.decisions.about("job:17")] == ["cleared"]
    with pytest.raises(ConfigError, match=r"'job:17' is no job .*; such jobs: job:18, job:19"):
        clear.clear(config(tmp_path), ledger, ["job:17"], NOW, "root")
    assert "growth counts job 19 again" in clear.clear(config(tmp_path), ledger, None, NOW, "root")
    assert ledger.growth_guard.rows() == ()


def test_only_its_own_name_decides_which_head_continues(
    tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(config_file(tmp_path))
    ledger.owner.record(JournalOwner(knows_since=NOW))
    ledger.owner.record_other_head(Quoted(text="another head works"), ["i-9"], NOW)
    clear.clear(config(tmp_path), ledger, None, NOW, "root")
    assert main(["--config", path, "clear", "--dry-run", "other-head"]) == 0
    assert ledger.owner.other_head() is not None
    assert main(["--config", path, "clear", "other-head", "job:17"]) == 2
    assert "is cleared by itself" in capsys.readouterr().err
    assert main(["--config", path, "clear", "other-head"]) == 0
    ledger.refresh()
    assert ledger.owner.other_head() is None
    owner = ledger.owner.get()
    assert owner is not None
    assert owner.accepted == ("i-9",)
    assert "cleared: this head continues; before, another head works" in capsys.readouterr().out
    (decision,) = ledger.decisions.about("other-head")
    assert decision.kind == "cleared"


def test_without_another_head_nothing_is_decided(
    tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(config_file(tmp_path))
    assert main(["--config", path, "clear", "other-head"]) == 0
    assert ledger.owner.get() is None
