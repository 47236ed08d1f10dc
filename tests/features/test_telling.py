"""People are told once, by mail, webhook and command; nothing waits for it."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from ckpt_cases import migration_of
from msgspec.structs import replace
from patience import eventually, patience

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.local_time import moment
from slurm_elastic.config import configfile
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.config.sections.telling import Notify, NotifyEvent
from slurm_elastic.features.news import telling
from slurm_elastic.features.news.notify_occasions import (
    SLURM_AWAY_S,
    Occasion,
    of_breakers,
    of_budget,
    of_health,
    of_moves,
    of_rate,
)
from slurm_elastic.features.news.telling import (
    MAX_PER_HOUR,
    MAX_QUEUED,
    Teller,
    address_of,
    all_occasions,
    document,
    ways,
)
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.pool_failures import BootsFailed
from slurm_elastic.model.cluster import Limits, Usage
from slurm_elastic.model.exclusion import BREAKER, Exclusion
from slurm_elastic.model.memory import Health
from slurm_elastic.policies.money.bounds import Spent
from slurm_elastic.policies.repair.strays import code_of
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import MigrationStep
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.ledger import Condition, Ledger
from tests.controller.test_end_only import FULL, EnduringWorld, no_room
from tests.controller.world import Inline, World

STRAY = code_of(1)
SCRIPT = """#!/bin/sh
cat >> {out}.stdin
echo >> {out}.stdin
printf '%s\\n' "$@" >> {out}.args
env | sort >> {out}.env
"""

NOW = 1_800_000_000.0


def program(directory: Path, name: str) -> Path:
    path = directory / name
    path.write_text(SCRIPT.format(out=directory / name))
    path.chmod(0o755)
    return path


def paused(world: World, pool: str = "burst") -> None:
    world.ledger.exclusions.add(
        Exclusion(
            kind=BREAKER, scope=pool, until=world.now + 600, cause=Quoted(text="never up"), count=10
        )
    )


def fail_to_boot(world: World, pool: str, count: int) -> None:
    world.ledger.exclusions.add(
        Exclusion(kind=BREAKER, scope=pool, cause=BootsFailed(), count=count)
    )


def slurm(world: World, error: str | None) -> None:
    world.ledger.health.report(Health(name="slurm", checked=world.now, error=error, code="slurm"))


def teller(world: World, **notify: Any) -> Teller:
    site = world.site
    return Teller(
        dataclasses.replace(site, config=replace(site.config, notify=Notify(**notify))),
        Inline(),
    )


def test_a_command_gets_values_as_environment_and_json_and_no_shell_sees_them(
    world: World, tmp_path: Path
) -> None:
    run = program(tmp_path, "hook")
    paused(world, "burst")
    nasty = '$(touch /tmp/x); "a"\nb'
    world.ledger.health.report(Health(name="pub", checked=world.now, error=nasty, code="auth"))
    made = teller(world, command=(str(run), "an argument; with words"))
    made.look()
    stdin = tmp_path / "hook.stdin"
    eventually(lambda: stdin.exists() and stdin.read_text().count("\n") == 2)
    eventually(lambda: (tmp_path / "hook.env").read_text().count("SLURM_ELASTIC_EVENT") == 2)
    made.close()
    found = {one["event"]: one for one in map(json.loads, stdin.read_text().splitlines())}
    assert found.keys() == {"paused", "credentials"}
    assert found["paused"]["text"] == "pool burst is paused: never up"
    assert found["paused"]["values"]["pool"] == "burst"
    assert nasty in found["credentials"]["text"]
    assert (tmp_path / "hook.args").read_text().splitlines()[0] == "an argument; with words"
    environment = (tmp_path / "hook.env").read_text()
    assert "SLURM_ELASTIC_EVENT=paused" in environment
    assert "SLURM_ELASTIC_POOL=burst" in environment
    assert "HOME=" not in environment


def test_mail_goes_by_the_sites_own_program(world: World, tmp_path: Path) -> None:
    run = program(tmp_path, "mail")
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=alps\nMailProg={run}\n")
    paused(world)
    site = world.site
    config = replace(
        site.config,
        slurm=replace(site.config.slurm, conf=str(conf)),
        notify=Notify(mail=("root@example.org", "ops@example.org")),
    )
    made = Teller(dataclasses.replace(site, config=config), Inline())
    made.look()
    eventually(lambda: (tmp_path / "mail.env").exists())
    made.close()
    assert (tmp_path / "mail.args").read_text().splitlines() == [
        "-s", "slurm-elastic alps: paused", "root@example.org", "ops@example.org"
    ]  # fmt: skip
    assert "pool burst is paused: never up" in (tmp_path / "mail.stdin").read_text()


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]], threading.Event]]:
    got: list[dict[str, Any]] = []
    go_on = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            go_on.wait(60)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", got, go_on
    go_on.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_webhook_that_hangs_holds_nobody_up(
    world: World, hook: tuple[str, list[dict[str, Any]], threading.Event]
) -> None:
    url, got, go_on = hook
    made = teller(world, webhook=url)
    paused(world, "burst")
    made.look()
    eventually(lambda: len(got) == 1)
    paused(world, "rack")
    began = time.monotonic()
    made.look()
    assert time.monotonic() - began < 30
    assert len(got) == 1
    go_on.set()
    eventually(lambda: len(got) == 2)
    made.close()
    assert [one["values"]["pool"] for one in got] == ["burst", "rack"]


def test_a_webhook_that_points_elsewhere_has_not_got_the_message(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """urllib would follow with a GET, which loses the document."""
    methods: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            methods.append("POST")
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            methods.append("GET")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    made = teller(world, webhook=f"http://127.0.0.1:{server.server_port}/hook")
    paused(world)
    made.look()
    eventually(lambda: "notification failed" in caplog.text or "notified" in caplog.text)
    made.close()
    server.shutdown()
    server.server_close()
    thread.join()
    assert methods == ["POST"]
    assert "notification failed way=webhook event=paused error=HTTP Error 302" in caplog.text


def test_the_address_may_be_in_a_file_for_slurmuser_alone(
    world: World, tmp_path: Path, hook: tuple[str, list[dict[str, Any]], threading.Event]
) -> None:
    url, got, go_on = hook
    go_on.set()
    file = tmp_path / "webhook"
    file.write_text(f"{url}\n# of our chat\n")
    file.chmod(0o600)
    made = teller(world, webhook=str(file))
    paused(world)
    made.look()
    eventually(lambda: len(got) == 1)
    made.close()


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("https://chat.example.org/secret", 0o644, r"may be read by others \(mode 0644\)"),
        ("ftp://chat.example.org/secret", 0o600, "found no http"),
    ],
)
def test_a_file_with_an_address_that_cannot_be_used_is_told_without_it(
    tmp_path: Path, text: str, mode: int, told: str
) -> None:
    file = tmp_path / "webhook"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=told) as raised:
        address_of(str(file))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "address", ["https://chat.example.org?key=@x", "https://chat.example.org#@x"]
)
def test_an_at_sign_behind_the_host_is_no_password(address: str) -> None:
    assert address_of(address) == address


@pytest.mark.parametrize(
    "address", ["https://bot:secret@chat.example.org?x", "https://[fd00::1/secret"]
)
def test_an_address_with_a_password_or_without_a_host_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="the address cannot be used") as raised:
        address_of(address)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "address",
    [
        "http://bot:secret@127.0.0.1/hook",
        "http://bot:secret@127.0.0.1:9/hook",
        "http://127.0.0.1:9/secret\x01",
        "http://127.0.0.1:9/secr\u00e9t/secret",
    ],
)
def test_an_address_that_cannot_be_used_is_not_in_the_log(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    file = tmp_path / "webhook"
    file.write_text(address)
    file.chmod(0o600)
    made = teller(world, webhook=str(file))
    paused(world)
    made.look()
    eventually(lambda: "notification failed way=webhook" in caplog.text)
    made.close()
    assert "notify.webhook: the address cannot be used" in caplog.text
    assert "secret" not in caplog.text


def test_a_way_that_fails_leaves_the_others(
    world: World, tmp_path: Path, hook: tuple[str, list[dict[str, Any]], threading.Event]
) -> None:
    url, got, go_on = hook
    go_on.set()
    made = teller(world, webhook=url, command=("/nonexistent/program",), mail=("a@example.org",))
    paused(world)
    made.look()
    eventually(lambda: len(got) == 1)
    made.close()


def test_what_waits_behind_a_way_that_hangs_is_bounded(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Teller, "_deliver", lambda _: None)
    made = teller(world)
    one = Occasion(event="paused", key="k", text="pool burst is paused", values={})
    for _ in range(MAX_QUEUED):
        made.hand_over(one)
    assert "notification dropped" not in caplog.text
    made.hand_over(one)
    assert (
        f"notification dropped, {MAX_QUEUED} others are queued: pool burst is paused" in caplog.text
    )
    made.close()


def test_the_same_is_told_once_also_after_a_restart_and_again_after_a_day(world: World) -> None:
    paused(world)
    keys = ["paused/burst"]
    assert world.ledger.decisions.claim_messages(keys, world.now, 86400, MAX_PER_HOUR, 3600) == keys
    world.restart()
    assert (
        world.ledger.decisions.claim_messages(keys, world.now + 86000, 86400, MAX_PER_HOUR, 3600)
        == []
    )
    assert (
        world.ledger.decisions.claim_messages(keys, world.now + 86400, 86400, MAX_PER_HOUR, 3600)
        == keys
    )


def test_no_more_than_so_many_are_told_in_an_hour(world: World) -> None:
    keys = [f"lost/{n}/0" for n in range(MAX_PER_HOUR + 5)]
    first = world.ledger.decisions.claim_messages(keys, world.now, 86400, MAX_PER_HOUR, 3600)
    assert len(first) == MAX_PER_HOUR
    assert (
        world.ledger.decisions.claim_messages(keys, world.now + 60, 86400, MAX_PER_HOUR, 3600) == []
    )
    rest = world.ledger.decisions.claim_messages(keys, world.now + 3601, 86400, MAX_PER_HOUR, 3600)
    assert {*first, *rest} == set(keys)


@pytest.mark.parametrize(
    ("spent", "parts"), [(7.9, []), (8.0, ["80"]), (9.99, ["80"]), (10.0, ["100"])]
)
def test_a_budget_is_told_at_80_and_at_100_percent(spent: float, parts: list[str]) -> None:
    found = of_budget("account physics", Budget(per_month=10), Spent(month=spent), NOW)
    assert [one.key.rpartition("/")[2] for one in found] == parts


@pytest.mark.parametrize(
    ("first", "second", "periods"),
    [
        ("2026-11-29T00:05", "2026-11-29T23:00", []),
        ("2026-11-29T23:00", "2026-11-30T09:00", ["day"]),
        ("2026-11-30T23:00", "2026-12-01T09:00", ["day", "month"]),
    ],
)
def test_the_budget_of_another_day_is_told_within_the_day(
    world: World, first: str, second: str, periods: list[str]
) -> None:
    """On the next morning the budget may be spent before a day has passed."""
    budget, spent = Budget(per_day=10, per_month=100), Spent(day=10.0, month=100.0)
    told: list[str] = []
    for at in (first, second):
        now = datetime.fromisoformat(f"{at}+00:00").timestamp()
        keys = [one.key for one in of_budget("cluster", budget, spent, now)]
        told = world.ledger.decisions.claim_messages(keys, now, 86400, MAX_PER_HOUR, 3600)
    assert [key.split("/")[2] for key in told] == periods


def test_a_budget_and_a_cap_that_were_raised_are_told_again_within_the_day(world: World) -> None:
    told: list[list[str]] = []
    for dollars in (10.0, 10.0, 20.0):
        spent, limits = Spent(day=dollars), Limits(dollars_per_hour=dollars)
        occasions = [
            *of_budget("cluster", Budget(per_day=dollars), spent, world.now),
            *of_rate(replace(world.config, limits=limits), Usage(dollars_per_hour={"": dollars})),
        ]
        keys = [one.key for one in occasions]
        told.append(
            world.ledger.decisions.claim_messages(keys, world.now, 86400, MAX_PER_HOUR, 3600)
        )
        world.now += 3600
    assert [len(keys) for keys in told] == [2, 0, 2]


def test_all_kinds_of_occasions_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = world.now
    world.slurm.submit(1, ["pub1"])
    world.advance(60)
    paused(world, "rack")
    fail_to_boot(world, "burst", 3)
    slurm(world, "slurmctld does not answer")
    monkeypatch.setattr(
        Ledger, "condition", Condition(end_only="the disk is full", remedy="make room")
    )
    world.ledger.health.report(Health(name="onp", checked=now, error="onp: expired", code="auth"))
    world.ledger.health.report(Health(name="paid machines", checked=now, error="1 x", code=STRAY))
    world.ledger.owner.record_other_head(Quoted(text="another head works"), ["i-9"], now)
    state = CheckpointState(world.dir / FILE)
    state.put(replace(migration_of(42, 1000), step=MigrationStep.BACK, changed=now))
    state.close()
    site = world.site
    config = replace(
        site.config,
        policies=SitePolicies(budget=Budget(per_day=0.000001)),
        limits=Limits(dollars_per_hour=0.11),
    )
    found = list(all_occasions(dataclasses.replace(site, config=config), SLURM_AWAY_S))
    assert {one.event for one in found} == set(NotifyEvent)
    (lost,) = [one for one in found if one.event is NotifyEvent.LOST]
    at = moment(migration_of(42, 1000).began)
    assert lost.text == f"job 42 of u1000 lost its work at {at} and started over: reclaimed"


@pytest.mark.parametrize(
    ("error", "code", "event"),
    [
        ("expired", "auth", NotifyEvent.CREDENTIALS),
        ("1 machine", STRAY, NotifyEvent.STRAY),
        ("throttled", "busy", None),
        (None, "auth", None),
        (None, STRAY, None),
    ],
)
def test_of_a_clouds_health_refused_credentials_and_paid_machines_are_told(
    error: str | None, code: str, event: NotifyEvent | None
) -> None:
    found = of_health([Health(name="pub", checked=5.0, error=error, code=code)])
    assert [one.event for one in found] == ([event] if event else [])


def handed_over(
    world: World, monkeypatch: pytest.MonkeyPatch, **notify: Any
) -> tuple[Teller, list[str]]:
    """A teller that delivers nothing, and what it would have."""
    made, keys = teller(world, **notify), []
    monkeypatch.setattr(made, "hand_over", lambda one: keys.append(one.key))
    return made, keys


def test_twenty_are_told_in_an_hour_and_the_rest_in_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(25):
        paused(world, f"p{number}")
        world.ledger.exclusions.add(
            Exclusion(kind=BREAKER, scope=f"p{number}", until=world.now + 1e6, count=3)
        )
    made, keys = handed_over(world, monkeypatch)
    made.look()
    assert len(keys) == len(set(keys)) == 20
    world.now += 3599
    made.look()
    assert len(keys) == 20
    world.now += 1
    made.look()
    assert len(keys) == len(set(keys)) == 25


def lose(world: World, *jobs: int) -> None:
    state = CheckpointState(world.dir / FILE)
    for job in jobs:
        state.put(
            replace(migration_of(job, 1000), step=MigrationStep.BACK, image=None, changed=world.now)
        )
    state.close()


def refuse(world: World, error: str | None) -> None:
    code = None if error is None else "auth"
    world.ledger.health.report(Health(name="pub", checked=world.now, error=error, code=code))


def test_a_night_of_lost_jobs_is_one_message_and_silences_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = teller(world)
    told: list[Occasion] = []
    monkeypatch.setattr(made, "hand_over", told.append)
    lose(world, *range(1, 31))
    refuse(world, "expired")
    made.look()
    first, summary = told
    assert first.event is NotifyEvent.CREDENTIALS, "the most important first"
    assert summary.text.startswith("30 jobs lost their work from ")
    assert moment(migration_of(1, 1000).began) in summary.text
    assert summary.text.endswith("19, 20 and 10 more")
    assert summary.values["count"] == 30.0
    for job in range(31, 31 + 2 * MAX_PER_HOUR):
        world.now += 30
        lose(world, job)
        made.look()
    assert len(told) == 1 + MAX_PER_HOUR
    paused(world)
    made.look()
    assert told[-1].key == "paused/burst"


def test_credentials_refused_again_are_reported_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, keys = handed_over(world, monkeypatch)

    def told_after(seconds: float, error: str | None) -> int:
        world.now += seconds
        refuse(world, error)
        made.look()
        return len(keys)

    assert told_after(0, "expired") == 1
    assert told_after(60, None) == 1
    assert told_after(60, "expired") == 1, "every 10 minutes at most"
    assert told_after(4800, "expired") == 2
    assert told_after(4800, "expired") == 2, "the same outage"


def test_slurm_that_fails_for_minutes_is_told_once_and_a_restart_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, keys = handed_over(world, monkeypatch)

    def told_after(seconds: float, error: str | None) -> int:
        world.now += seconds
        slurm(world, error)
        made.look()
        return len(keys)

    assert told_after(0, "no answer") == 0
    assert told_after(SLURM_AWAY_S - 1, "no answer") == 0
    assert told_after(1, None) == 0
    assert told_after(30, "no answer") == 0, "it answered in between"
    assert told_after(SLURM_AWAY_S, "no answer") == 1
    assert told_after(3600, "no answer") == 1
    assert told_after(30, None) == 1
    assert told_after(30, "no answer") == 1
    assert told_after(SLURM_AWAY_S, "no answer") == 2, "another outage"


def test_a_full_disk_is_told_once_although_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = EnduringWorld(tmp_path)
    made = teller(world)
    told: list[Occasion] = []
    monkeypatch.setattr(made, "hand_over", told.append)
    monkeypatch.setattr(FULL, no_room)
    world.advance(10)
    made.look()
    assert told == [], "the disk may have room in a moment"
    for _ in range(3):
        world.advance(60)
        made.look()
    (message,) = told
    assert message.event is NotifyEvent.RECORDS
    assert "is full" in message.text
    assert message.text.endswith(f"; do: {world.ledger.condition.remedy}")
    made.close()
    world.close()


def test_machines_that_do_not_come_up_are_told_before_their_pool_is_paused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, keys = handed_over(world, monkeypatch)
    pool = next(iter(world.site.pools))
    for count in (2, 3, 4):
        fail_to_boot(world, pool, count)
        made.look()
    assert keys == [f"boot/{pool}"]
    world.ledger.exclusions.readmit(BREAKER, pool)
    made.look()
    world.now += 600
    fail_to_boot(world, pool, 3)
    made.look()
    assert keys == [f"boot/{pool}"] * 2


def test_a_pause_that_ends_for_a_try_is_not_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, keys = handed_over(world, monkeypatch)
    for _ in range(3):
        paused(world)
        made.look()
        world.now += 1800
        made.look()
    assert keys == ["paused/burst"]
    world.ledger.exclusions.readmit(BREAKER, "burst")
    made.look()
    paused(world)
    made.look()
    assert keys == ["paused/burst"] * 2


@pytest.mark.parametrize(("age", "told"), [(86400.0, 1), (86401.0, 0)])
def test_what_was_lost_is_told_for_a_day(world: World, age: float, told: int) -> None:
    state = CheckpointState(world.dir / FILE)
    state.put(
        replace(
            migration_of(42, 1000), step=MigrationStep.BACK, image=None, changed=world.now - age
        )
    )
    state.close()
    found = [one for one in all_occasions(world.site) if one.event is NotifyEvent.LOST]
    assert len(found) == told


def test_looking_for_lost_work_makes_no_file_where_nothing_saves_any(world: World) -> None:
    assert list(all_occasions(world.site)) == []
    assert not (world.dir / FILE).exists()


def test_it_looks_twice_a_minute(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr(Teller, "look", lambda _: looks.append(world.now))
    made = teller(world, webhook="http://127.0.0.1:9/")
    for _ in range(61):
        made.task.tick()
        world.now += 1
    made.close()
    assert [at - looks[0] for at in looks] == [0, 30, 60]


def test_only_what_the_site_asks_for_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    paused(world)
    world.ledger.health.report(Health(name="pub", checked=world.now, error="no", code="auth"))
    made, keys = handed_over(world, monkeypatch, events=(NotifyEvent.CREDENTIALS,))
    made.look()
    assert keys == ["credentials/pub"]


@pytest.mark.parametrize(
    ("rate", "cap", "told"),
    [(0.79, 1.0, False), (0.8, 1.0, True), (0.0, 0.0, False), (5.0, None, False)],
)
def test_a_rate_is_told_from_80_percent_of_a_cap_on(
    world: World, rate: float, cap: float | None, told: bool
) -> None:
    config = replace(world.config, limits=Limits(dollars_per_hour=cap))
    found = list(of_rate(config, Usage(dollars_per_hour={"": rate, "cloud:pub": 0.2})))
    both = {one.key: one.text for one in found}
    assert both.pop("rate/cloud:pub/0.25") == (
        "cloud pub: machines may cost $0.20 an hour, the cap is $0.25"
    )
    assert both.keys() == ({"rate/cluster/1"} if told else set())
    assert list(of_rate(config, Usage())) == [], "nothing runs"


def test_what_is_over_or_can_be_read_or_was_saved_is_no_occasion(world: World) -> None:
    now = world.now
    rests = Exclusion(kind=BREAKER, scope="a", until=now, cause=Quoted(text="x"), count=3)
    assert list(of_breakers([rests], now)) == []
    ((one),) = of_breakers([replace(rests, until=now + 1)], now)
    assert one.values == {"pool": "a", "failures": 3.0, "until": now + 1}
    fine = [Health(name="pub", checked=now, code="auth"), Health(name="x", checked=now, code=STRAY)]
    assert list(of_health(fine)) == []
    other = Health(name="pub", checked=now, error="away", code="unreadable")
    assert list(of_health([other])) == []
    move = migration_of(42, 1000)
    lost = replace(move, step=MigrationStep.BACK, image=None)
    assert [o.key for o in of_moves([lost])] == [f"lost/42/{move.run.attempt}"]
    assert list(of_moves([replace(lost, step=MigrationStep.WAITING)])) == []


@pytest.mark.parametrize(
    ("spent", "told"),
    [
        (Spent(day=8.0), "x: $8.00 of $10.00 of this day's budget is spent"),
        (
            Spent(day=10.0),
            "x: $10.00 of $10.00 of this day's budget is spent; no new machine is started for it",
        ),
    ],
)
def test_a_spent_budget_says_what_that_means(spent: Spent, told: str) -> None:
    (one,) = of_budget("x", Budget(per_day=10.0), spent, NOW)
    assert one.text == told
    assert one.values == {"scope": "x", "period": "day", "spent": spent.day, "budget": 10.0}


def test_a_program_gets_thirty_seconds_a_clean_environment_and_no_terminal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[list[str], dict[str, Any]]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **how: runs.append((command, how)))
    config = replace(
        world.config,
        slurm=replace(world.config.slurm, conf="/nonexistent/slurm.conf"),
        notify=Notify(command=("/bin/hook", "x"), mail=("a@example.org",)),
    )
    one = Occasion(
        event=NotifyEvent.PAUSED, key="k", text="nul \0 inside", values={"pool": "burst"}
    )
    for _, send in ways(config):
        send(one)
    (mail, as_mail), (hook, as_hook) = runs
    assert mail == ["/usr/bin/mail", "-s", "slurm-elastic alps: paused", "a@example.org"]
    assert hook == ["/bin/hook", "x"]
    assert as_hook["env"] == {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8",
        "SLURM_ELASTIC_CLUSTER": "alps", "SLURM_ELASTIC_EVENT": "paused",
        "SLURM_ELASTIC_TEXT": "nul  inside", "SLURM_ELASTIC_POOL": "burst",
    }  # fmt: skip
    for how in (as_mail, as_hook):
        assert (how["timeout"], how["cwd"], how["check"]) == (30.0, "/", True)
        assert how["stdout"] == subprocess.DEVNULL


def test_what_was_told_and_what_was_not_is_in_the_log(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = program(tmp_path, "hook")
    before = threading.enumerate()
    made = teller(world, command=(str(run),), mail=("a@example.org",), mail_program="/nonexistent")
    (thread,) = [one for one in threading.enumerate() if one not in before]
    paused(world)
    made.look()
    told = "notified way=command event=paused text=pool burst is paused: never up"
    eventually(lambda: told in caplog.text)
    assert "notification failed way=mail event=paused error=" in caplog.text
    made.close()
    assert thread.daemon, "nor does the end of the daemon wait for a delivery"
    thread.join(patience(60))
    assert not thread.is_alive()


def test_one_that_is_closed_while_many_wait_does_not_wait_for_them(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Teller, "_deliver", lambda _: None)
    made = teller(world)
    for number in range(MAX_QUEUED):
        made.hand_over(Occasion(event=NotifyEvent.PAUSED, key=f"{number}", text="x"))
    assert caplog.text == ""
    made.close()
    made.hand_over(Occasion(event=NotifyEvent.PAUSED, key="one more", text="x"))
    assert "notification dropped, 100 others are queued: x" in caplog.text


def test_nobody_is_told_where_nobody_is_named(world: World) -> None:
    assert telling.join(world.site) is None
    config = replace(world.site.config, notify=Notify(mail=("ops@example.org",)))
    assert telling.join(dataclasses.replace(world.site, config=config)) is not None


def test_the_document_says_which_cluster_and_version() -> None:
    one = Occasion(event=NotifyEvent.RATE, key="rate/cluster", text="x", values={"rate": 1.5})
    assert json.loads(document("alps", one)) == {
        "version": 1, "cluster": "alps", "event": "rate", "key": "rate/cluster", "text": "x",
        "values": {"rate": 1.5},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{command: [mail, x]}", r"notify\.command\[0\]"),
        ("{mail: ['-f x']}", r"notify\.mail\[0\]"),
        ("{webhook: 'ftp://x'}", r"notify\.webhook"),
        ("{webhook: webhook.txt}", r"notify\.webhook"),
        ("{mail_program: mail}", r"notify\.mail_program"),
        ("{events: [budgets]}", r"notify\.events\[0\]"),
        ("{accounts: {Physics: [a@example.org]}}", r"notify\.accounts\.Physics: .* lower case"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, place: str) -> None:
    from status_cases import config_file

    path = config_file(tmp_path)
    path.write_text(path.read_text() + f"notify: {text}\n")
    with pytest.raises(ConfigError, match=place):
        configfile.load(path)
