"""``report --mail``: the mails about a month, shown or sent now."""

from __future__ import annotations

import sys
from pathlib import Path

import month_cases
import pytest

from slurm_elastic.base.account import trusted
from slurm_elastic.cli.main import main
from slurm_elastic.cli.reports import month_mail, report
from slurm_elastic.state.ledger import Ledger
from tests.features.test_account_mails import MAIL, OCTOBER, program, sent

OWNERS = "accounts: {physics: [pi@x.org, office@x.org], idle: [no@x.org]}"


class Site:
    def __init__(self, root: Path, owners: str) -> None:
        self.sent = root / "sent"
        self.file = month_cases.config_file(root)
        mail = program(root / "mail", MAIL, out=str(self.sent), code=0)
        text = f"{self.file.read_text()}notify: {{mail_program: {mail}, {owners}}}\n"
        self.file.write_text(text)
        ledger = Ledger(root / "state" / "ledger.db")
        for hour, (node, account) in enumerate((("pub1", "physics"), ("pub2", "geo")), 1):
            month_cases.one_machine(ledger, OCTOBER.begin + 3600 * hour, node, account)
        ledger.close()

    def __call__(self, *words: str) -> int:
        return main(["--config", str(self.file), "report", "--month", "2026-10", *words])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(report.time, "time", lambda: month_cases.NOW)
    return Site(tmp_path, OWNERS)


def test_a_dry_run_prints_the_mails_and_sends_nothing(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site("--mail", "--dry-run") == 0
    told = capsys.readouterr().out
    assert told.startswith(
        "To: pi@x.org, office@x.org\nSubject: slurm-elastic alps: physics in October 2026: $0.45\n"
    )
    assert "Account physics on cluster alps, October 2026 (UTC)\n" in told
    assert sent(site.sent) == []


def test_a_trial_goes_to_one_address_and_has_the_owners_text(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site("--mail", "--dry-run")
    (_, text) = capsys.readouterr().out.split("\n\n", 1)
    assert site("--mail", "--to", "me@x.org") == 0
    assert capsys.readouterr().out == "sent: account physics to me@x.org\n"
    ((words, mailed),) = sent(site.sent)
    assert words[2:] == ["me@x.org"]
    assert mailed == text


def test_without_to_the_owners_get_it(site: Site) -> None:
    assert site("--mail") == 0
    ((words, _),) = sent(site.sent)
    assert words[2:] == ["pi@x.org", "office@x.org"]


def test_a_person_at_a_terminal_is_asked_before_owners_get_mail(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert site("--mail") == 2
    assert (sent(site.sent), capsys.readouterr().err) == ([], "nothing was sent\n")
    assert site("--mail", "--to", "me@x.org") == 0


def test_a_site_without_owners_tries_all_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report.time, "time", lambda: month_cases.NOW)
    (tmp_path / "other").mkdir()
    site = Site(tmp_path / "other", "users: false")
    assert site("--mail", "--to", "me@x.org") == 0
    assert [words[1].split()[2] for words, _ in sent(site.sent)] == ["geo", "physics"]
    capsys.readouterr()
    assert site("--mail") == 1
    assert "no mail: in October 2026 no account with an address" in capsys.readouterr().err


def test_a_month_in_which_no_account_spent_money_is_said_as_that(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --to the advice to use --to would lead nowhere."""
    words = ["report", "--month", "2026-09", "--mail", "--to", "me@x.org"]
    assert main(["--config", str(site.file), *words]) == 1
    said = capsys.readouterr().err
    assert "no mail: in September 2026 no account spent money" in said
    assert "tries it" not in said


def test_a_mail_that_fails_is_told_with_the_program(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    mail = program(site.sent.parent / "mail", MAIL, out=str(site.sent), code=3)
    assert site("--mail", "--to", "me@x.org") == 1
    told = capsys.readouterr().err
    assert told.startswith(f"not sent: account physics to me@x.org: {mail}: ")


@pytest.mark.parametrize("words", [("--to", "a@x"), ("--dry-run",)])
def test_options_that_mean_nothing_are_refused(site: Site, words: tuple[str, ...]) -> None:
    assert site(*words) == 2
    assert sent(site.sent) == []


@pytest.mark.parametrize("address", ["-Xoption", "a@x b@x", "a@x\n"])
def test_an_address_that_a_mail_program_could_misread_is_refused(site: Site, address: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        site("--mail", f"--to={address}")
    assert sent(site.sent) == []


def test_it_is_for_root_and_slurm_user(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = max(trusted("root")) + 4242
    monkeypatch.setattr(month_mail.os, "geteuid", lambda: stranger)
    assert site("--mail", "--dry-run") == 1


def test_the_running_month_is_marked(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report.time, "time", lambda: OCTOBER.end - 86400)
    assert site("--mail", "--dry-run") == 0
    assert "October 2026 is not over" in capsys.readouterr().err
