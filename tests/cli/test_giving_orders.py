"""``pause``, ``resume`` and ``limit`` as commands: said first, then done, and shown everywhere."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from status_cases import busy_ledger, config_file

from slurm_elastic.cli.main import GROUPS, main
from slurm_elastic.cli.orders import departure_orders
from slurm_elastic.config.configfile import INSTALLED_COPY
from slurm_elastic.model.directive import Departure, Directive, Pause
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.decisions import Decisions
from slurm_elastic.watch.door.client import facts_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root may")


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(config_file(tmp_path))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = busy_ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "page", ["docs/steering.md", "docs/README.md", "docs/configuration.md", "etc/slurm-elastic.yaml",
             "slurm_elastic/watch/doctor/head.py", "slurm_elastic/config/sections/access.py"],
)  # fmt: skip
def test_where_orders_are_listed_for_people_all_are(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    given = [one for one in GROUPS["steer it"] if one != "resume"]
    assert [one for one in given if one not in text] == [], f"{page} lacks them"


def test_a_pause_is_said_done_and_shown_first(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pause", "onprem", "--for", "2h", "--reason", "disk", "--config", file]) == 0
    said = told(capsys).splitlines()
    assert said[0] == "No new machines in cloud onprem (1 pool)."
    assert said[1] == "2 machines at $0.02/h stay until they are idle."
    assert said[2].startswith("cloud onprem is paused by root until 20")
    assert said[2].endswith(" UTC: disk")
    (one,) = ledger.directives.all()
    assert one.until is not None
    assert abs(one.until - time.time() - 7200) < 600
    assert main(["status", "--config", file]) == 0
    lines = [line for line in told(capsys).splitlines() if line.strip()]
    assert lines[1].startswith("Cloud onprem is paused by root until"), "below the headline"
    main(["status", "--json", "--config", file])
    (view,) = json.loads(told(capsys))["directives"]
    assert (view["given_by"], view["holds"], view["stops"]) == ("root", True, True)


def test_a_dry_run_changes_nothing(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pause", "--dry-run", "--config", file]) == 0
    assert told(capsys).splitlines()[-1] == "dry run: nothing was changed"
    assert main(["limit", "cluster", "nodes", "1", "--dry-run", "--config", file]) == 0
    assert told(capsys).splitlines()[0] == "the cluster: nodes no limit -> 1"
    assert main(["limit", "cluster", "dollars_per_hour", "1", "--dry-run", "--config", file]) == 0
    assert told(capsys).splitlines()[0] == "the cluster: dollars_per_hour no limit -> $1.00/h"
    assert ledger.directives.all() == ()


def test_what_fails_is_not_told_as_done(
    file: str, ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.close()
    for one in (tmp_path / "journal").glob("ledger-*"):
        one.unlink()
    (tmp_path / "ledger.db").write_text("this is no database" * 100)
    assert main(["pause", "--config", file]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("slurm-elastic: nothing was ordered: the ledger cannot be read: ")


def test_the_command_that_ends_an_order_is_said_and_lines_fit(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    for words, end in (
        (["pause", "rack"], "slurm-elastic resume pool:rack"),
        (["pause"], "slurm-elastic resume cluster"),
        (["limit", "cluster", "nodes", "3"], "slurm-elastic limit cluster nodes reset"),
    ):
        assert main([*words, "--reason", "a long reason " * 5, "--config", file]) == 0
        said = told(capsys)
        assert " ".join(said.split()).endswith(f"until: {end}")
        assert max(map(len, said.splitlines())) <= 50


def test_resume_ends_it_and_says_what_there_is_where_there_is_none(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["pause", "rack", "--config", file])
    told(capsys)
    assert main(["resume", "onprem", "--config", file]) == 2
    assert "'onprem' is not paused or drained; choose from: pool:rack" in capsys.readouterr().err
    assert main(["resume", "op1", "--config", file]) == 2  # such as after its replacement
    assert "'op1' is not paused or drained; choose from" in capsys.readouterr().err
    assert main(["resume", "rack", "--config", file]) == 0
    assert told(capsys) == "order ended: pool rack is paused by root\n"
    assert ledger.directives.all() == ()
    for nothing in ([], ["--all"]):
        assert main(["resume", *nothing, "--config", file]) == 2
        assert capsys.readouterr().err == "slurm-elastic: nothing is paused or drained\n"


def test_resume_of_a_node_keeps_the_order_about_a_cloud_of_the_same_name(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    drain = Departure(verb="drain", about="onprem", nodes=("onprem",))
    for word in (Pause(scope="cloud:onprem"), drain):
        ledger.directives.give(Directive(word=word, who="root", since=1.0, starts=1.0))
    assert main(["resume", "onprem", "--config", file]) == 0
    assert told(capsys) == "order ended: node onprem is drained by root\n"
    assert main(["resume", "onprem", "--config", file]) == 0
    assert told(capsys) == "order ended: cloud onprem is paused by root\n"


def test_an_operator_can_look_and_brake_while_the_file_is_wrong(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(file).parent / INSTALLED_COPY).write_text(Path(file).read_text())
    Path(file).write_text(Path(file).read_text() + "limitz: {}\n")
    for command, shown in (
        (["pause", "onprem"], "onprem"),
        (["status"], "onprem"),
        (["explain", "op1"], "local-op1-1"),
    ):
        code = main([*command, "--config", file])
        out, error = capsys.readouterr()
        assert code == 0, error
        assert "limitz" in error
        assert shown in out
    assert main(["conf", "show", "--config", file]) == 2


def test_a_limit_is_shown_by_status_and_conf_show_and_is_reset(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["limit", "rack", "max_nodes", "1", "--for", "8h", "--config", file]) == 0
    said = told(capsys)
    assert "pool rack: max_nodes no limit -> 1" in said
    assert "now 2 machines; running machines stay" in said
    assert " UTC on: the configuration's value: no limit" in said
    main(["status", "--json", "--config", file])
    (pool,) = json.loads(told(capsys))["pools"]
    assert (pool["name"], pool["limit"]) == ("rack", 1)
    assert main(["conf", "show", "--config", file]) == 0
    assert "# now: pool rack: max_nodes is 1 by root since 20" in told(capsys)
    assert main(["limit", "rack", "max_nodes", "reset", "--config", file]) == 0
    assert ledger.directives.all() == ()
    assert main(["limit", "rack", "max_nodes", "reset", "--config", file]) == 2
    assert "has its configured value already" in capsys.readouterr().err


def test_a_limit_of_a_pool_that_has_left_the_configuration_is_reset_by_the_printed_command(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["limit", "rack", "max_nodes", "1", "--config", file]) == 0
    command = told(capsys).splitlines()[-1].removeprefix("until: slurm-elastic ").split()
    Path(file).write_text(Path(file).read_text().replace("name: rack", "name: shelf"))
    assert main([*command, "--config", file]) == 0
    assert ledger.directives.all() == ()


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (("pause", "rack"), ("resume", "rack")),
        (("limit", "rack", "max_nodes", "1"), ("limit", "rack", "max_nodes", "reset")),
    ],
)
def test_the_reason_why_an_order_ends_is_recorded(
    file: str, ledger: Ledger, begin: tuple[str, ...], end: tuple[str, ...]
) -> None:
    assert main([*begin, "--reason", "disk", "--config", file]) == 0
    assert main([*end, "--reason", "new  disk", "--config", file]) == 0
    last = ledger.decisions.about("pool:rack")[-1]
    assert last.kind == "directive-ended"
    assert str(last.reason).endswith(": disk; ended by root: new disk")


def test_orders_stay_if_their_end_cannot_be_recorded(
    file: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused ``resume`` has ended nothing, and the same command is accepted later."""
    assert main(["pause", "rack", "--config", file]) == 0
    ordered = ledger.directives.all()

    def record(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as full:
        full.setattr(Decisions, "record", record)
        assert main(["resume", "rack", "--config", file]) != 0
    assert ledger.directives.all() == ordered
    assert main(["resume", "rack", "--config", file]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("limit", "rack", "max_nodes", "many"), "'many' is neither a number nor 'reset'"),
        (("limit", "rack", "nodes", "1"), "pool rack has no limit 'nodes'; it has max_nodes"),
        (("pause", "nowhere"), "'nowhere' is no pool or cloud; there are pools: rack (op[1-2]); "),
        (
            ("limit", "nowhere", "nodes", "1"),
            "is no pool, cloud, account or user with a budget; there are pools: ",
        ),
    ],
)
def test_bad_words_change_nothing(
    file: str,
    ledger: Ledger,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    assert main([*words, "--config", file]) == 2
    assert said in capsys.readouterr().err
    assert ledger.directives.all() == ()


@pytest.mark.parametrize(
    "words",
    [
        *(("pause", *bad) for bad in (("--for", "0"), ("--for", "400d"), ("--for", "10"))),
        *((command, "--reason", "a\nb") for command in ("pause", "resume")),
    ],
)
def test_bad_options_are_wrong_use(file: str, ledger: Ledger, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--config", file])
    assert ended.value.code == 2
    assert ledger.directives.all() == ()


def test_a_reset_limit_has_no_end(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = ("limit", "rack", "max_nodes")
    assert main([*limit, "1", "--config", file]) == 0
    for dry in ([], ["--dry-run"]):
        assert main([*limit, "reset", "--for", "2h", *dry, "--config", file]) == 2
        assert "--for is 2h, expected no --for with reset" in capsys.readouterr().err
    assert len(ledger.directives.all()) == 1


def test_sudo_says_for_whom(file: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    main(["pause", "--config", file])
    assert [d.who for d in ledger.directives.all()] == ["root (alice)"]


@pytest.mark.parametrize(
    ("answer", "code"), [("y", 0), ("YES", 0), ("", 2), ("n", 2), (None, 2), ("--yes", 0)]
)
def test_at_a_terminal_a_cloud_is_emptied_only_after_a_yes(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, answer: str | None, code: int,
) -> None:  # fmt: skip
    def type_answer(question: str) -> str:
        assert question == "This empties cloud onprem. Do it? [y/N] "
        assert answer != "--yes", "who says --yes is not asked"
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", type_answer)
    monkeypatch.setattr(departure_orders, "gather", lambda config, _, now: facts_of(config, now))
    words = ["drain", "onprem", *(["--yes"] if answer == "--yes" else [])]
    assert main([*words, "--config", file]) == code
    said = capsys.readouterr()
    assert said.out.startswith("Drain cloud onprem: 2 machines"), "before the question"
    assert ("nothing was ordered" in said.err) == (code == 2)
    assert len(ledger.directives.all()) == (0 if code else 1)


def test_without_a_terminal_nobody_is_asked(
    file: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As scripts gave this order before there was a question."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    monkeypatch.setattr(departure_orders, "gather", lambda config, _, now: facts_of(config, now))
    assert main(["drain", "onprem", "--config", file]) == 0
    assert len(ledger.directives.all()) == 1
