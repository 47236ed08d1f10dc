"""The page acts as the command line does: the same text first, the same order, the person's name."""

from __future__ import annotations

import json
import os
import re
import time
from http import HTTPStatus
from pathlib import Path

import needs
import pytest

from slurm_elastic.cli.main import main
from slurm_elastic.config.configfile import INSTALLED_COPY
from slurm_elastic.model.directive import Departure, LimitChange, Pause
from slurm_elastic.model.exclusion import BREAKER, Exclusion
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.watch.web import act_pages
from slurm_elastic.watch.web.actions import FormField, PageAction
from slurm_elastic.watch.web.policy import STATIC
from tests.watch.web.acting_stage import NOBODY, SUDO, Visitor

pytestmark = needs.ROOT


def recorded(ledger: Ledger, kind: str) -> list[Decision]:
    found = (*ledger.decisions.about("pool:rack"), *ledger.decisions.about("op1"))
    return [decision for decision in found if decision.kind == kind]


ORDERS = {
    "pause": ({"scope": "onprem", "for": "2h", "reason": "a disk"},
              ["pause", "onprem", "--for=2h", "--reason=a disk"]),
    "limit": ({"scope": "rack", "key": "max_nodes", "value": "1"},
              ["limit", "rack", "max_nodes", "1"]),
    "drain": ({"subject": "op[1-2]", "aggressive": "yes", "max_unavailable": "1"},
              ["drain", "--aggressive", "--max-unavailable=1", "op[1-2]"]),
    "replace": ({"subject": "rack", "at": "now+2h"}, ["replace", "--at=now+2h", "rack"]),
    "migrate": ({"subject": "onprem", "to": "spare"}, ["migrate", "--to=spare", "onprem"]),
}  # fmt: skip


@pytest.mark.parametrize("action", ORDERS)
def test_an_order_is_shown_as_by_dry_run_and_then_given_in_the_persons_name(
    action: str, sock: Path, file: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    values, argv = ORDERS[action]
    person = Visitor(sock, NOBODY, SUDO)
    shown = person.asks(action, **values)
    assert shown.status == HTTPStatus.OK, shown.words
    assert ledger.directives.all() == (), "a preview does nothing"
    main([*argv, "--dry-run", "--config", str(file)])
    *told, last = capsys.readouterr().out.splitlines()
    assert last == "dry run: nothing was changed"
    # A terminal's lines are wrapped.
    assert " ".join(shown.effects)[:60] == " ".join(told)[:60]
    assert f"slurm-elastic {argv[0]}" in shown.words
    done = person.confirms(shown)
    assert done.status == HTTPStatus.OK, done.words
    (order,) = ledger.directives.all()
    assert order.who == "nobody", "not the page's own user"
    assert done.effects[0].startswith(("from ", order.word.fact))
    (decision,) = recorded(ledger, "directed")
    assert " by nobody" in str(decision.cause)


def test_the_orders_are_those_of_the_command_line(
    sock: Path, file: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    person = Visitor(sock, NOBODY, SUDO)
    for action, (values, _) in ORDERS.items():
        if action != "replace":
            assert person.does(action, **values).status == HTTPStatus.OK, action
    by_page = {type(o.word): o.word for o in ledger.directives.all()}
    assert set(by_page) == {Pause, LimitChange, Departure}
    for order in ledger.directives.all():
        ledger.directives.end(order.number)
    for action, (_, argv) in ORDERS.items():
        if action != "replace":
            assert main([*argv, "--config", str(file)]) == 0, capsys.readouterr()
    assert {type(o.word): o.word for o in ledger.directives.all()} == by_page


def test_a_pause_is_resumed_and_a_limit_reset(sock: Path, ledger: Ledger) -> None:
    person = Visitor(sock, NOBODY, SUDO)
    person.does("pause", scope="rack")
    person.does("limit", scope="rack", key="max_nodes", value="1")
    shown = person.asks("resume", subject="rack", reason="done")
    assert shown.effects == ["would end: pool rack is paused by nobody"]
    assert person.confirms(shown).effects[0] == "order ended: pool rack is paused by nobody"
    shown = person.asks("limit", scope="rack", key="max_nodes", value="reset")
    assert shown.effects == ["pool rack: max_nodes 1 -> no limit"]
    person.confirms(shown)
    assert ledger.directives.all() == ()
    ended = [str(d.cause) for d in recorded(ledger, "directive-ended")]
    whose = [text.rpartition("; ")[2] for text in ended]
    assert whose == ["ended by nobody: done", "ended by nobody"]


def test_what_cannot_be_done_is_said_on_the_form_which_keeps_its_values(
    sock: Path, ledger: Ledger
) -> None:
    person = Visitor(sock, NOBODY, SUDO)
    for action, values, sentence in (
        ("pause", {"scope": "nowhere"}, "'nowhere' is no pool or cloud"),
        ("pause", {"scope": "rack", "for": "0"}, "'0' is not from 1s to 366d"),
        ("pause", {"scope": "--all", "reason": "--config=/x"}, "'--all' is no pool or cloud"),
        ("resume", {"subject": "rack"}, "nothing is paused or drained"),
        ("limit", {"scope": "rack", "key": "nodes", "value": "1"}, "has no limit 'nodes'"),
        ("drain", {"subject": "elsewhere"}, "is no pool, cloud or node of a pool"),
        ("drain", {}, "the following arguments are required"),
        ("migrate", {"subject": "onprem", "to": "onprem"}, "must name a different cloud"),
    ):
        refused = person.asks(action, **values)
        assert refused.status == HTTPStatus.UNPROCESSABLE_ENTITY, (action, refused.words)
        assert sentence.lower() in refused.words.lower()
        for value in values.values():
            assert f'value="{value}"' in refused.text
    assert ledger.directives.all() == ()


def test_words_of_people_are_text(sock: Path, ledger: Ledger) -> None:
    person, hostile = Visitor(sock, NOBODY, SUDO), "<script>x</script>\"'"
    shown = person.asks("pause", scope="rack", reason=hostile)
    assert hostile not in shown.text
    assert hostile not in person.confirms(shown).text
    assert person.asks("pause", scope=hostile).status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert hostile not in person.get("pause", scope=hostile, reason=f"{hostile}\u202e").text
    assert ledger.directives.all()[0].reason == hostile


def test_root_clears_and_operators_may_not(sock: Path, ledger: Ledger) -> None:
    """As on the command line."""
    ledger.exclusions.add(Exclusion(kind=BREAKER, scope="rack", count=3, until=time.time() + 900))
    operator, root = Visitor(sock, NOBODY, SUDO), Visitor(sock)
    assert operator.may()["clear"] == "this is for root and slurm"
    assert "This is for root and slurm." in operator.get("clear").words
    shown = root.asks("clear", subjects="rack")
    assert "would be cleared: failed boots of pool rack" in shown.effects
    assert "rack" in [row.scope for row in ledger.exclusions.breakers()]
    assert root.confirms(shown).effects[-1].startswith("slurm-elasticd acts on it within")
    assert "rack" not in [row.scope for row in ledger.exclusions.breakers()]
    (decision,) = recorded(ledger, "cleared")
    assert str(decision.cause).startswith("by root: ")


def test_jobs_that_lose_work_are_shown_before_the_button(
    sock: Path, ledger: Ledger, jobs: list[SlurmJob]
) -> None:
    running = frozenset({"RUNNING"})
    jobs.append(
        SlurmJob(id=41, states=running, nodes=("op1",), start=1.0, requeue=True, batch=True)
    )
    shown = Visitor(sock, NOBODY, SUDO).asks("drain", subject="rack", aggressive="yes")
    assert "Careful 1 job loses all work." in shown.words


def test_a_preview_that_no_longer_holds_is_shown_again_and_not_carried_out(
    sock: Path, ledger: Ledger, jobs: list[SlurmJob]
) -> None:
    person, other = Visitor(sock, NOBODY, SUDO), Visitor(sock)
    running = frozenset({"RUNNING"})
    shown = person.asks("drain", subject="rack", aggressive="yes")
    jobs.append(
        SlurmJob(id=41, states=running, nodes=("op1",), start=1.0, requeue=True, batch=True)
    )
    again = person.confirms(shown)
    assert again.status == HTTPStatus.CONFLICT
    assert "Nothing was done: the cluster has changed since." in again.words
    assert "1 job loses all work" in again.words
    assert ledger.directives.all() == ()
    other.does("pause", scope="spare")
    third = person.confirms(again)
    assert third.status == HTTPStatus.CONFLICT, "another person's order counts, too"
    assert person.confirms(third).status == HTTPStatus.OK
    assert {o.word.command_name for o in ledger.directives.all()} == {"pause", "drain"}


def test_a_preview_holds_though_time_passes(
    sock: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The costs until a time limit, and a time such as now+2h, are those of the request."""
    person = Visitor(sock, NOBODY, SUDO)
    shown = person.asks("drain", subject="rack", at="now+2h")
    time.sleep(1.1)
    assert person.confirms(shown).status == HTTPStatus.OK
    (order,) = ledger.directives.all()
    assert 7000 < order.starts - time.time() < 7200


def test_a_right_that_was_taken_away_is_gone_at_the_confirmation(
    sock: Path, file: Path, ledger: Ledger
) -> None:
    person = Visitor(sock, NOBODY, SUDO)
    shown = person.asks("pause", scope="rack")
    file.write_text(file.read_text().replace("[sudo]", "[]"))
    refused = person.confirms(shown)
    assert refused.status == HTTPStatus.FORBIDDEN
    assert "this is for root, slurm and members" in refused.words.lower()
    assert ledger.directives.all() == ()


def test_a_broken_file_leaves_the_page_its_brakes(sock: Path, file: Path, ledger: Ledger) -> None:
    (file.parent / INSTALLED_COPY).write_text(file.read_text())
    file.write_text("limitz: {}")
    person = Visitor(sock, NOBODY, SUDO)
    assert person.may()["pause"] == ""
    assert person.does("pause", scope="rack").status == HTTPStatus.OK
    assert len(ledger.directives.all()) == 1


def test_the_script_of_the_page_asks_who_may_do_what(sock: Path) -> None:
    told = json.loads(Visitor(sock, NOBODY, SUDO).send("GET", "/api/actions").text)
    assert told["user"] == "nobody"
    assert [each["name"] for each in told["actions"]] == [
        "pause", "resume", "limit", "drain", "replace", "migrate", "clear", "save",
    ]  # fmt: skip


def test_a_page_of_a_user_acts_for_that_user_alone(
    sock: Path, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    """It has no right of its own to give others' orders: the daemon would record its user."""
    shown = Visitor(sock).asks("pause", scope="rack")
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    refused = Visitor(sock).confirms(shown)
    assert "this page runs as nobody, so only nobody can act on it" in refused.words.lower()


def test_pages_of_actions_have_the_tabs_of_the_page() -> None:
    """In the same order: the one is a script's, the other has to do without."""
    pages = (STATIC / "app.js").read_text().partition("const PAGES = {")[2].partition("};")[0]
    tabs = dict(re.findall(r'(\w+): \["([^"]+)"', pages))
    tabs.pop("clusters", None)  # only a page of several clusters has it
    assert tabs.items() <= act_pages.TABS.items()
    assert [place for place in act_pages.TABS if place in tabs] == list(tabs)


def test_a_migration_has_no_target_until_somebody_chooses_it() -> None:
    clouds = FormField(name="to", label="To", is_required=True, choices=("a", "b"), is_open=False)
    action = PageAction(name="migrate", title="Migrate", summary="", fields=(clouds,))
    empty = act_pages.form("ann", action, {}, "token")
    assert '<select id="to" name="to" required><option value="" selected></option>' in empty
    chosen = act_pages.form("ann", action, {"to": "b"}, "token")
    assert '<option value="b" selected>' in chosen
