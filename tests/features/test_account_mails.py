"""The owners of accounts get one mail about each month, by the site's own mail program."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import month_cases
import pytest
from cost_cases import machine
from msgspec.structs import replace

from slurm_elastic.base.month import Month, month_at
from slurm_elastic.cli.main import main
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.sections.telling import Notify
from slurm_elastic.controller.context import Site
from slurm_elastic.features.money.account_costs import account_months
from slurm_elastic.features.money.books import read_books, report
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.features.news import account_mails as module
from slurm_elastic.features.news.account_mails import AccountMails, join
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.state.ledger import Ledger
from tests.controller.world import Inline, World

OCTOBER = Month(2026, 10)
MAIL = """#!{python}
import json, sys
with open({out!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], sys.stdin.read()]) + "\\n")
sys.exit({code})
"""
SACCTMGR = """#!/bin/sh
echo "$*" >> {out}
echo 'physics|ann,bob'
echo 'chemistry|'
"""


def program(path: Path, text: str, **values: object) -> Path:
    path.write_text(text.format(python=sys.executable, **values))
    path.chmod(0o755)
    return path


@pytest.fixture
def mailed(world: World, tmp_path: Path) -> Path:
    """A ledger with machines of September and October; the file of the sent mails."""
    begin = OCTOBER.begin
    with world.ledger.store.transaction("machines", "launches"):
        for node, account, at in (
            ("pub1", "physics", begin + 3600), ("pub2", "chemistry", begin + 7200),
            ("pub3", "geo", begin + 10_800), ("pub4", "physics", begin - 90_000),
        ):  # fmt: skip
            month_cases.one_machine(world.ledger, at, node, account)
    program(tmp_path / "mail", MAIL, out=str(tmp_path / "sent"), code=0)
    return tmp_path / "sent"


def site_of(world: World, tmp_path: Path, **notify: Any) -> Site:
    config = replace(
        world.site.config, notify=Notify(mail_program=str(tmp_path / "mail"), **notify)
    )
    return dataclasses.replace(world.site, config=config)


def mails(world: World, tmp_path: Path, **notify: Any) -> AccountMails:
    return AccountMails(site_of(world, tmp_path, **notify), Inline())


def sent(path: Path) -> list[tuple[list[str], str]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


TWO = {"physics": ("pi@x.org", "office@x.org"), "chemistry": ("chem@x.org",), "idle": ("no@x.org",)}


def test_each_account_gets_one_mail_after_the_end_of_the_month(
    world: World, tmp_path: Path, mailed: Path
) -> None:
    made = mails(world, tmp_path, accounts=TWO)
    for now in (OCTOBER.end - 60, OCTOBER.end + 3599):
        world.now = now
        made.look()
    assert sent(mailed) == [], "the ends of the last jobs may not be recorded yet"
    world.now = OCTOBER.end + 3600
    made.look()
    (chemistry, _), (physics, text) = sent(mailed)
    assert chemistry[2:] == ["chem@x.org"]
    assert physics == [
        "-s", "slurm-elastic alps: physics in October 2026: $0.45", "pi@x.org", "office@x.org"
    ]  # fmt: skip
    assert text.startswith("Account physics on cluster alps, October 2026 (UTC)\n")
    assert "Spent:     $0.45 for 1 job in 4.5 machine-hours\n" in text
    assert "so $1.17 (72 %) was saved" in text
    assert "In September 2026 it was $" in text
    assert "ann     $0.45" in text
    assert "--since 2026-10-01 --until 2026-11-01" in text
    made.look()
    assert len(sent(mailed)) == 2


def test_neither_a_restart_nor_another_head_sends_it_again(
    world: World, tmp_path: Path, mailed: Path
) -> None:
    world.now = OCTOBER.end + 7200
    mails(world, tmp_path, accounts=TWO).look()
    for hours in (1, 30, 100):
        world.now = OCTOBER.end + 7200 + 3600 * hours
        mails(world, tmp_path, accounts=TWO).look()
        # The other notifications delete their own old rows of the same table.
        world.ledger.decisions.claim_messages(["x"], world.now, 60.0, 9, 60.0)
    assert len(sent(mailed)) == 2


def test_a_crash_between_the_record_and_the_mail_sends_at_most_once(
    world: World, tmp_path: Path, mailed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashes(*_: object) -> None:
        raise KeyboardInterrupt

    world.now = OCTOBER.end + 7200
    with monkeypatch.context() as crashed:
        crashed.setattr(module, "send_mail", crashes)
        with pytest.raises(KeyboardInterrupt):
            mails(world, tmp_path, accounts=TWO).look()
    mails(world, tmp_path, accounts=TWO).look()
    assert len(sent(mailed)) == 1, "the other account's"


def test_a_mail_that_fails_is_logged_and_the_others_are_sent(
    world: World, tmp_path: Path, mailed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program(tmp_path / "mail", MAIL, out=str(mailed), code=1)
    world.now = OCTOBER.end + 7200
    made = mails(world, tmp_path, accounts=TWO)
    made.look()
    made.look()
    assert len(sent(mailed)) == 2
    assert "mail about an account failed account=physics" in caplog.text


def test_many_mails_are_sent_a_few_at_a_time(
    world: World, tmp_path: Path, mailed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PER_LOOK", 1)
    world.now = OCTOBER.end + 7200
    made = mails(world, tmp_path, accounts=TWO)
    counts = []
    for _ in range(4):
        made.look()
        counts.append(len(sent(mailed)))
    assert counts == [1, 2, 2, 2]


def test_after_a_stop_no_further_mail_is_begun_and_none_is_lost(
    world: World, tmp_path: Path, mailed: Path
) -> None:
    world.now = OCTOBER.end + 7200
    site = site_of(world, tmp_path, accounts=TWO)
    stopping = dataclasses.replace(site, wait=lambda _: len(sent(mailed)) == 1)
    AccountMails(stopping, Inline()).look()
    assert len(sent(mailed)) == 1
    AccountMails(site, Inline()).look()
    assert len(sent(mailed)) == 2


def test_a_month_that_is_long_over_is_not_mailed(
    world: World, tmp_path: Path, mailed: Path
) -> None:
    world.now = OCTOBER.end + 8 * 86400
    mails(world, tmp_path, accounts=TWO).look()
    assert sent(mailed) == []


def test_coordinators_get_it_at_their_user_names(
    world: World, tmp_path: Path, mailed: Path
) -> None:
    program(tmp_path / "sacctmgr", SACCTMGR, out=tmp_path / "asked")
    (tmp_path / "slurm.conf").write_text("ClusterName=alps\n")
    site = site_of(world, tmp_path, coordinators=True, accounts={"physics": ("pi@x.org",)})
    slurm = replace(site.config.slurm, bin_dir=str(tmp_path), conf=str(tmp_path / "slurm.conf"))
    site = dataclasses.replace(site, config=replace(site.config, slurm=slurm))
    world.now = OCTOBER.end + 7200
    AccountMails(site, Inline()).look()
    ((words, _),) = sent(mailed)
    assert words[2:] == ["pi@x.org", "ann", "bob"]
    assert "show account withcoordinator" in (tmp_path / "asked").read_text()


def test_it_joins_if_somebody_gets_mails(world: World, tmp_path: Path) -> None:
    assert join(world.site) is None
    assert join(site_of(world, tmp_path, accounts=TWO)) is not None
    assert join(site_of(world, tmp_path, coordinators=True)) is not None


def test_the_running_service_mails_what_its_own_machines_cost(tmp_path: Path) -> None:
    """The daemon's loop, from the launch of a machine for a job to the mail about its month."""
    mailed = tmp_path / "sent"
    mail = program(tmp_path / "mail", MAIL, out=str(mailed), code=0)
    world = World(
        tmp_path / "world", notify=Notify(mail_program=str(mail), accounts={"physics": ("pi@x",)})
    )
    world.slurm.submit(1, ("pub1",), account="physics")
    world.advance(600)
    world.slurm.finish(1)
    world.advance(1200)
    (bought,) = world.ledger.machines.live(ended_since=0.0)
    assert bought.ended_at is not None
    assert sent(mailed) == []
    month = month_at(bought.instance.launched)
    world.ledger.usage.write([
        ChargedRun(
            job=1, begin=bought.instance.launched, end=bought.ended_at, label="1", user="ann",
            uid=7, account="physics", partition="pub", shares=(("pub1", 10**6),),
        )
    ])  # fmt: skip
    world.now = month.end + 3600
    world.advance(700, step=100)
    world.close()
    ((words, text),) = sent(mailed)
    assert words[2:] == ["pi@x"]
    assert f"Account physics on cluster alps, {month.name} (UTC)" in text


def test_the_amounts_are_those_of_cost(tmp_path: Path) -> None:
    config: Config = configfile.load(month_cases.config_file(tmp_path))
    month_cases.fill(config.state / "ledger.db", seed=7)
    with closing(Ledger(config.state / "ledger.db", read_only=True)) as ledger:
        books = read_books(config, ledger, OCTOBER.begin, OCTOBER.end, month_cases.NOW)
    of_account = account_months(books)
    lines = {line.key: line for line in report(books, By.ACCOUNT).lines if not line.unused}
    assert of_account.keys() == lines.keys() - {"(none)"}
    for account, costs in of_account.items():
        assert costs.micro == lines[account].micro
        assert costs.hours == pytest.approx(lines[account].hours)
        assert sum(costs.users.values()) == sum(costs.jobs.values()) == costs.micro
        assert costs.micro_on_demand >= costs.micro * 0.5


def test_no_name_of_a_user_adds_lines(world: World, tmp_path: Path, mailed: Path) -> None:
    nasty = ChargedRun(
        job=999, begin=OCTOBER.begin + 40_000, end=OCTOBER.begin + 50_000, label="999",
        user="eve\nSpent: $0", uid=7, account="physics", partition="aws", shares=(("pub5", 10**6),),
    )  # fmt: skip
    world.ledger.machines.adopt(
        machine("pub5", OCTOBER.begin + 30_000, 0.1), "burst", OCTOBER.begin, 0.36
    )
    world.ledger.usage.write([nasty])
    world.now = OCTOBER.end + 7200
    mails(world, tmp_path, accounts=TWO).look()
    _, (_, text) = sent(mailed)
    assert "eve?Spent: $0" in text


@pytest.mark.parametrize(
    ("address", "is_fine"), [("pi@x.org", True), ("ann", True), ("-oQ/tmp", False), ("a b", False)]
)
def test_addresses_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str, is_fine: bool
) -> None:
    path = month_cases.config_file(tmp_path)
    text = f'{path.read_text()}notify: {{accounts: {{physics: ["{address}"]}}}}\n'
    path.write_text(text)
    main(["--config", str(path), "conf", "keys", "notify.accounts"])
    if is_fine:
        assert configfile.load(path).notify.accounts == {"physics": (address,)}
        return
    with pytest.raises(Exception, match="an address of mail"):
        configfile.load(path)
    capsys.readouterr()
