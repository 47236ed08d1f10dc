"""What ``status`` prints beyond the screens of tests/screens, and how its command behaves."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from ckpt_cases import migration_of
from ledger_cases import T0, instance
from machine_cases import changed
from msgspec.structs import replace
from patience import patience
from rich.console import Console
from status_cases import NOW, busy_ledger, busy_slurm, config, config_file, job, node

from slurm_elastic.base.errors import ConfigError, SlurmError
from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate import status
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.cli.operate.status_screen import SHORT, WIDE, Screen
from slurm_elastic.cli.operate.status_tables import render
from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.model.causes.hindrances import SaveErrorLasts
from slurm_elastic.model.cluster import Limits, Location, Notice, NoticeKind
from slurm_elastic.model.directive import Departure, Directive
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.money.bounds import Spent
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate.facts import RecordedNotice, UnsavableRun
from slurm_elastic.state.ledger import Health, Ledger, Machine
from slurm_elastic.watch.door import records
from slurm_elastic.watch.view import Facts, StatusView, status_view
from slurm_elastic.watch.view.checkpoints import CheckpointFacts
from slurm_elastic.watch.view.narrowing import view_of_part


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = busy_ledger(tmp_path / "ledger.db")
    made.health.beat("slurm-elasticd", NOW - 3, os.getpid())
    yield made
    made.close()


@pytest.fixture(name="config_file")
def _config_file(tmp_path: Path) -> Path:
    return config_file(tmp_path)


def text_of(view: StatusView, width: int, screen: Screen = SHORT) -> str:
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        render(view, console, screen)
    return captured.get()


def seen(state_dir: Path, slurm: FakeSlurm | None = None) -> StatusView:
    made = config(state_dir)
    return status_view(made, status.gather(made, slurm or busy_slurm(), NOW))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_screen_and_nothing_is_cut(
    ledger: Ledger, tmp_path: Path, width: int
) -> None:
    text = text_of(seen(tmp_path), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    squeezed = "".join(text.split())
    wide = ("i-0aaaaaaaaaaaaaaa1", "local-op1-1", "eu-west-1a", "booting: times out in 3m 10s")
    for wanted in (
        *("c6i.xlarge", "on-demand", "booting", *(wide if width >= WIDE else ())),
        *("42 bob, 43 carol", "suspends in 3m 20s unless used", "down: Not responding"),
        *("pub[7-8]", "pub[7-8]  2m", "aws/c6i.xlarge/eu-west-1b/spot", "1m 40s", "5/8"),
        "terminating: suspended by Slurm",
        *("zones [eu-west-1b]", "alive, heartbeat 3s ago", "UnauthorizedOperation: no"),
    ):
        assert wanted.replace(" ", "") in squeezed or wrapped(wanted, text), wanted


def test_on_a_very_narrow_screen_nothing_vanishes(ledger: Ledger, tmp_path: Path) -> None:
    text = text_of(seen(tmp_path), 50)
    assert max(len(line) for line in text.splitlines()) <= 50
    for wanted in (
        "suspends in 3m 20s unless used",
        "down: Not responding",
        "42 bob, 43 carol",
    ):
        assert wanted in " ".join(text.split()), wanted
    assert "aws (public) general, pub[1-8]: 5/8 paid" in " ".join(text.split())
    assert "and 1 more" in text
    assert "terminating: suspended by Slurm" in text_of(seen(tmp_path), 50, Screen(whole=True))


def test_who_met_an_error_is_named_once(ledger: Ledger, tmp_path: Path) -> None:
    ledger.health.report(Health(name="slurm", checked=NOW, error="slurm: away", code="x"))
    assert "last error of slurm: away" in text_of(seen(tmp_path), 120)


def test_a_stopped_machine_is_no_running_one_and_is_paid_for(
    ledger: Ledger, tmp_path: Path
) -> None:
    made = config(tmp_path)
    found = status.gather(made, busy_slurm(), NOW)
    kept = [changed(m, stopped=NOW - 60) for m in found.machines if not m.has_ended]
    for number, told in ((0, "No machine is paid."),
                         (1, "No machine runs; 1 stopped machine is paid for."),
                         (2, "No machine runs; 2 stopped machines are paid for.")):  # fmt: skip
        view = status_view(made, replace(found, machines=(), stopped=kept[:number]))
        assert told in " ".join(text_of(view, 120).split())


def crowded(directory: Path) -> StatusView:
    """2,000 machines of 10,000 nodes; 20 of these are down, and some machines idle."""
    many = PoolSettings(name="general", cloud="aws", nodes="pub[1-10000]", cpus=4, memory=8192)
    made = replace(config(directory), pools=(many,))
    on = [f"pub{n}" for n in range(1, 4000, 2)]
    machines = [
        Machine(instance=instance(f"i-{n:017x}", name, launched=T0), pool="general")
        for n, name in enumerate(on)
    ]
    busy, down = frozenset({"ALLOCATED", "CLOUD"}), frozenset({"DOWN", "CLOUD"})
    off = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
    nodes = {f"pub{n}": off for n in range(1, 10001)}
    nodes |= dict.fromkeys(on, busy) | dict.fromkeys(on[50::100], down)
    facts = Facts(
        now=NOW, machines=machines,
        nodes={
            name: SlurmNode(name=name, states=states, reason="gone" if states == down else "")
            for name, states in nodes.items()
        },
    )  # fmt: skip
    return status_view(made, facts)


@pytest.mark.parametrize("width", [50, 80, 120, 160])
def test_a_large_cluster_fits_on_a_screen_what_needs_attention_first(
    tmp_path: Path, width: int
) -> None:
    view = crowded(tmp_path)
    text = text_of(view, width)
    assert len(text.splitlines()) <= 60
    assert text.count("down: gone") == {50: 5, 80: 8}.get(width, 10)
    assert "20 need attention" in " ".join(text.split())
    hidden = 2000 - {50: 5, 80: 8}.get(width, 10)
    assert f"and {hidden} more, {hidden - 1980} of which need attention" in " ".join(text.split())
    whole = text_of(view, width, Screen(whole=True))
    assert whole.count(" c6i.xlarge ") == 2000
    assert text_of(view, width, Screen(top=3)).count(" c6i.xlarge ") == 3


def test_machines_are_sorted_as_asked(ledger: Ledger, tmp_path: Path) -> None:
    view = seen(tmp_path)
    for key, worth in (
        ("cost", lambda i: i.cost),
        ("age", lambda i: i.age),
        ("price", lambda i: i.price),
    ):
        most = max(view.instances, key=worth)
        text = text_of(view, 160, Screen(top=1, sort=key))
        (line,) = (x for x in text.splitlines() if x.split()[1:2] == [most.id])
        assert most.node in line


def test_one_cloud_or_pool_is_shown_as_if_there_were_no_other(
    ledger: Ledger, tmp_path: Path
) -> None:
    made = config(tmp_path)
    facts = status.gather(made, busy_slurm(), NOW)
    for part in (("onprem", None), (None, "rack"), ("onprem", "rack")):
        view = view_of_part(made, facts, *part)
        assert [c.name for c in view.clouds] == ["onprem"]
        assert [p.name for p in view.pools] == ["rack"]
        assert {i.cloud for i in view.instances} == {"onprem"}
        assert not any(c.key.startswith("aws") for c in view.cool_downs)
        assert not view.daemon.problems


def two_pools(tmp_path: Path) -> tuple[Config, Facts]:
    """Cloud aws has nodes of 64 CPUs, too, and a job waits for such a node."""
    made = config(tmp_path)
    big = replace(made.pools[1], name="big", nodes="big[1-4]", cpus=64)
    made = replace(made, pools=(*made.pools, big))
    large = SlurmJob(
        id=77, states=frozenset({"PENDING"}), account="physics", partitions=("burst",),
        reason="Resources", cpus=64, node_cpus=64, submit=NOW - 100, eligible=NOW - 100,
    )  # fmt: skip
    facts = status.gather(made, busy_slurm(), NOW)
    return made, replace(facts, jobs=[*facts.jobs, large])


@pytest.mark.parametrize("pool", ["general", "big", "rack"])
def test_a_job_that_fits_another_pool_than_the_one_shown_is_not_stuck(
    ledger: Ledger, tmp_path: Path, pool: str
) -> None:
    made, facts = two_pools(tmp_path)
    view = view_of_part(made, facts, None, pool)
    assert [row.text for row in view.kept if "77" in row.names] == []
    assert not any("77" in notice.text for notice in view.attention)


def test_the_limit_of_a_pools_cloud_is_shown_with_all_machines_that_it_counts(
    ledger: Ledger, tmp_path: Path
) -> None:
    made, facts = two_pools(tmp_path)
    (row,) = view_of_part(made, facts, None, "big").clouds
    assert row == next(c for c in status_view(made, facts).clouds if c.name == "aws")
    assert row.machines == 5


def test_what_binds_the_whole_cluster_binds_and_is_told_of_each_part(
    ledger: Ledger, tmp_path: Path
) -> None:
    made = config(tmp_path)
    (onprem, aws) = made.clouds
    aws = replace(aws, limits=Limits(nodes=16))
    budget = SitePolicies(budget=Budget(per_day=0.1))
    made = replace(
        made, clouds=(onprem, aws), policies=budget, limits=Limits(nodes=20, dollars_per_hour=5.0)
    )
    facts = replace(status.gather(made, busy_slurm(), NOW), spent={"": Spent(day=0.2)})
    text = " ".join(text_of(view_of_part(made, facts, "aws", None), 160).split())
    assert "Cluster alps, cloud aws alone" in text
    assert "Not in use" not in text
    assert "No machine is started for the cluster: the budget of $0.10 a day is spent" in text
    assert "Machines of the whole cluster: 7 of at most 20;" in text
    assert "of at most $5.00/h; 1 here needs attention" in text


def test_notices_saves_moves_and_orders_of_others_are_no_part(
    ledger: Ledger, tmp_path: Path
) -> None:
    made = config(tmp_path)
    warned = Notice(
        instance="i-0aaaaaaaaaaaaaaa1", kind=NoticeKind.INTERRUPTION, seen=NOW, deadline=NOW + 60
    )
    told = CheckpointFacts(
        warned=(RecordedNotice(key="n", notice=warned, source="EventBridge"),),
        migrations=(migration_of(42, 1000),),
        unsavable=(
            UnsavableRun(
                job=42,
                label="42",
                attempt=0,
                method="x",
                at=NOW,
                cause=SaveErrorLasts(error="why"),
            ),
        ),
    )
    leaves = Departure(verb="drain", about="pub1", nodes=("pub1",))
    facts = replace(
        status.gather(made, busy_slurm(), NOW),
        checkpoints=told,
        directives=(Directive(word=leaves, who="root", since=NOW, starts=NOW),),
    )
    for cloud, shown in (("aws", 1), ("onprem", 0)):
        view = view_of_part(made, facts, cloud, None)
        assert view.checkpoints is not None
        found = view.checkpoints
        assert len(found.threats) == len(found.moves) == len(found.unsavable) == shown
        assert len(view.directives) == shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cloud", "asw"], "there is no cloud 'asw'; there are onprem, aws"),
        (["--pool", "x"], "there is no pool 'x'; there are rack, general"),
        (["--cloud", "aws", "--pool", "rack"], "there is no pool 'rack' in cloud aws"),
    ],
)
def test_a_cloud_or_pool_that_is_none_is_exit_2(
    tmp_path: Path, words: list[str], said: str
) -> None:
    part = dict(zip(words[::2], words[1::2], strict=True))
    with pytest.raises(ConfigError, match=said):
        status.show(
            config(tmp_path), busy_slurm(), selection=(part.get("--cloud"), part.get("--pool"))
        )


def test_a_colour_terminal_is_redrawn_without_raw_codes(ledger: Ledger, tmp_path: Path) -> None:
    console = Output(width=100, force_terminal=True, color_system="standard", file=io.StringIO())
    status.show(config(tmp_path), busy_slurm(), console=console, clear=True)
    text = console.file.getvalue()
    assert text.startswith("\x1b[2J\x1b[H"), "cleared"
    assert "\x1b[1m" in text, "colours reach the terminal"
    assert "\\x1b" not in text
    assert "\u241b" not in text


def wrapped(wanted: str, text: str) -> bool:
    """In a narrow cell: its words one after the other, though not side by side."""
    at = 0
    for word in wanted.split():
        at = text.find(word, at)
        if at < 0:
            return False
    return True


def test_wide_shows_one_line_a_machine(ledger: Ledger, tmp_path: Path) -> None:
    lines = text_of(seen(tmp_path), 160).splitlines()
    (line,) = (x for x in lines if x.split()[1:2] == ["i-0aaaaaaaaaaaaaaa1"])
    assert line.split() == [
        "pub1",
        "i-0aaaaaaaaaaaaaaa1",
        "c6i.xlarge",
        "eu-west-1a",
        "spot",
        "0.0400",
        "1h",
        "0.0400",
        "42",
        "bob,",
        "43",
        "carol",
        "in",
        "use",
    ]


def test_80_columns_have_one_line_a_machine_and_say_each_thing_once(
    ledger: Ledger, tmp_path: Path
) -> None:
    text = text_of(seen(tmp_path), 80)
    table = text[text.index("Node  Type") :].partition("\n\n")[0].splitlines()
    rows = [row for row in table[1:] if not row.startswith("   ")]
    assert [row.split()[0] for row in rows] == [i.node for i in seen(tmp_path).instances]
    assert "  42 bob, 43 carol" in next(row for row in rows if row.startswith("pub1 "))
    assert text.count("Not responding") == 1, "by its machine's row"
    assert "in use" not in text, "a count, and the jobs"


def test_another_pool_of_a_cloud_has_a_row_of_its_own(ledger: Ledger, tmp_path: Path) -> None:
    made = config(tmp_path)
    (rack, general) = made.pools
    half = replace(general, nodes="pub[1-4]"), replace(general, name="big", nodes="pub[5-8]")
    made = replace(made, pools=(rack, *half))
    text = text_of(status_view(made, status.gather(made, busy_slurm(), NOW)), 80)
    table = text[text.index("Cloud   Pool") :].splitlines()
    assert [row.split()[:2] for row in table[2:4]] == [["onprem", "rack"], ["aws", "1"]]
    assert [row.split()[0] for row in table[4:6]] == ["general", "big"]


def test_a_row_of_long_names_is_a_line_with_its_nodes_number_and_what_is_next(
    tmp_path: Path,
) -> None:
    pool = PoolSettings(
        name="gpu-interactive-large", cloud="aws", nodes="gpu-interactive-eu-west-node[1-2]",
        cpus=4, memory=8192,
    )  # fmt: skip
    name = "gpu-interactive-eu-west-node1"
    one = replace(instance("i-1", name, launched=T0), instance_type="standard-hpc-24xlarge.v2")
    facts = Facts(
        now=NOW,
        machines=(Machine(instance=one, pool=pool.name),),
        nodes={name: node(name, "DOWN", reason="Not responding")},
        jobs=(job(1234567, "mmustermann", name),),
    )
    view = status_view(replace(config(tmp_path), pools=(pool,)), facts)
    for width in (80, 100, 120, 160):
        (row,) = (x for x in text_of(view, width).splitlines() if x.startswith(f"{name} "))
        assert row.rstrip().endswith("down: Not responding")
        assert "1234567 mmustermann" in row


def test_a_hold_that_ends_at_no_known_time_has_no_time_left(ledger: Ledger, tmp_path: Path) -> None:
    view = seen(tmp_path)
    assert re.search(r"^Pool +Nodes +Left +Why *$", text_of(view, 80), re.MULTILINE)
    policy = tuple(replace(hold, kind="policy") for hold in view.holds)
    text = text_of(replace(view, holds=policy), 80)
    assert re.search(r"^Pool +Nodes +Why *$", text, re.MULTILINE)


def test_what_to_do_is_said_where_a_service_never_ran(tmp_path: Path) -> None:
    assert "do: systemctl start slurm-elasticd" in " ".join(text_of(seen(tmp_path), 80).split())
    view = status_view(config(tmp_path), Facts(now=NOW, checkpoints=CheckpointFacts()))
    assert "do: systemctl start slurm-elastic-ckptman" in " ".join(text_of(view, 80).split())


def test_totals_add_up_on_screen(ledger: Ledger, tmp_path: Path) -> None:
    text = text_of(seen(tmp_path), WIDE)
    (line,) = (x for x in text.splitlines() if x.startswith("all "))
    assert line.split() == ["all", "6", "0.2600", "0.1461", "1", "0.0200", "0.1661"]
    short = "Cost: $0.1461 for running machines, $0.02 for those ended in 24 h"
    assert short in text_of(seen(tmp_path), 80).splitlines()


def test_a_stale_daemon_is_loud(ledger: Ledger, tmp_path: Path) -> None:
    ledger.health.beat("slurm-elasticd", NOW - 500, os.getpid())
    view = seen(tmp_path)
    assert "Daemon: NOT RUNNING (heartbeat 8m 20s ago" in text_of(view, 100)
    console = Console(width=100, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        render(view, console)
    line = next(x for x in captured.get().splitlines() if "NOT RUNNING" in x)
    assert "\x1b[1;37;41m" in line, "white on red"


def test_a_dead_process_is_noticed_before_its_heartbeat_is_old(
    ledger: Ledger, tmp_path: Path
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=patience(60))
    ledger.health.beat("slurm-elasticd", NOW - 3, gone.pid)
    text = text_of(seen(tmp_path), 160)
    assert "NOT RUNNING (heartbeat 3s ago" in text
    assert "no such process on this host" in text


def test_a_process_that_has_ended_but_was_not_waited_for_is_gone(
    ledger: Ledger, tmp_path: Path
) -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    try:
        ledger.health.beat("slurm-elasticd", NOW - 3, zombie.pid)
        assert "NOT RUNNING (heartbeat 3s ago" in text_of(seen(tmp_path), 160)
    finally:
        zombie.wait(timeout=patience(60))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_own_node_is_missing_from_its_row(ledger: Ledger, tmp_path: Path, width: int) -> None:
    own = [
        SlurmNode(name=f"st{n}", states=frozenset(states), partitions=("batch",), cpus=4)
        for n, states in enumerate([{"IDLE"}, {"IDLE", "DRAIN"}, {"ALLOCATED"}])
    ]
    slurm = FakeSlurm(nodes=(*busy_slurm().nodes().values(), *own))
    text = text_of(seen(tmp_path, slurm), width)
    (head,) = (line for line in text.splitlines() if line.startswith("Cloud "))
    (row,) = (line for line in text.splitlines() if line.startswith("site "))
    total, _nodes, *cells = row.split(" own nodes ")[-1].removeprefix("site").split()
    assert sum(int(cell) for cell in cells if cell.isdecimal()) == int(total)
    assert "Drained" in head or "Other" in head


def test_a_slurm_without_any_node_makes_no_machine_an_orphan(
    ledger: Ledger, tmp_path: Path
) -> None:
    text = text_of(seen(tmp_path, FakeSlurm()), 120)
    assert "Slurm does not answer: Slurm lists no node at all" in text
    assert "orphan" not in text


def test_a_missing_ledger_is_said_and_the_rest_shown(tmp_path: Path) -> None:
    text = text_of(seen(tmp_path), 80)
    assert "(the ledger) cannot be read: there is no ledger at" in text
    assert "unknown, as its records (the ledger) cannot be read" in text
    assert "burst" in text or "aws" in text
    assert "Not responding" in text, "Slurm's part"
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize("width", [80, 160])
def test_what_a_ledger_that_cannot_be_read_would_tell_is_not_0(tmp_path: Path, width: int) -> None:
    text = text_of(seen(tmp_path), width)
    for name in ("onprem", "aws"):
        row = next(x for x in text.splitlines() if x.startswith(name)).split()
        assert not {"0/-", "0/4", "0/16", "0/8", "0.0000", "0.00/-", "0.00/5.00"} & {*row}, row
        assert any(cell.startswith("-/") for cell in row), row


def test_a_state_directory_that_may_not_be_looked_into_is_said_and_the_rest_shown(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(records, "Ledger", refused)
    monkeypatch.setattr(records, "CheckpointState", refused)
    text = text_of(seen(tmp_path), 400)
    assert f"(the ledger) cannot be read: {tmp_path}/ledger.db: Permission denied" in text
    assert "Not responding" in text, "Slurm's part"


def test_json_is_the_view(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.show(config(tmp_path), busy_slurm(), as_json=True) == 0
    out = capsys.readouterr().out
    view = msgspec.json.decode(out, type=StatusView)
    assert view.cluster == "alps"
    assert out.count("\n") == 1


def test_the_exit_code_is_1_when_nothing_could_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = FakeSlurm()
    slurm.broken = SlurmError(("sinfo",), 1, "away")
    assert status.show(config(tmp_path), slurm) == 1
    assert status.show(config(tmp_path), busy_slurm()) == 0


# the command itself


def test_the_command_says_what_is_missing(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(config_file), "status"]) == 1
    out = capsys.readouterr().out
    assert "Cluster alps" in out
    assert "Slurm does not answer" in out
    assert "\x1b" not in out, "no colour where the output is no terminal"


@pytest.mark.parametrize("wrong", ["0", "-3", "soon", "nan", "1e9"])
def test_a_wrong_period_is_refused(
    config_file: Path, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--config", str(config_file), "status", f"--watch={wrong}"])
    assert ended.value.code == 2
    assert "is not a number of seconds from 1 to 86400" in capsys.readouterr().err


def test_once_wins_over_watch(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(config_file), "status", "--watch", "--once"]) == 1
    assert capsys.readouterr().out.count("Cluster alps") == 1


def test_watch_shows_again_until_interrupted(config_file: Path) -> None:
    command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config", str(config_file)]
    # A shell's background jobs, and so their tests, are started with SIGINT ignored.
    with subprocess.Popen(
        [*command, "status", "--watch", "1", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        first, second = (msgspec.json.decode(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=patience(60)) == 130
    assert first["at"] < second["at"]


def test_the_program_ends_when_all_is_said(config_file: Path, tmp_path: Path) -> None:
    """With its own exit code, though it takes nothing apart first."""
    command = [sys.executable, "-P", "-m", "slurm_elastic.cli.main", "--config"]
    for file, code in ((config_file, 1), (tmp_path / "none.yaml", 2)):
        done = subprocess.run(
            [*command, str(file), "status", "--json"],
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )
        assert done.returncode == code
        if code == 2:
            assert "none.yaml" in done.stderr
        else:
            assert msgspec.json.decode(done.stdout)["cluster"] == "alps"


def test_a_reader_that_goes_away_is_no_traceback(config_file: Path) -> None:
    command = f"{sys.executable} -P -m slurm_elastic.cli.main --config {config_file} status"
    done = subprocess.run(
        ["bash", "-c", f"{command} --watch 1 | head -n 1"],
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    assert done.stdout.startswith("Cluster alps")
    assert done.stderr == ""


def test_locations_are_those_of_the_configuration(ledger: Ledger, tmp_path: Path) -> None:
    view = seen(tmp_path)
    assert [c.location for c in view.clouds] == [Location.ON_PREMISES, Location.PUBLIC]
    assert view.at == NOW > T0


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_task_of_an_array_is_named_as_squeue_names_it(
    ledger: Ledger, tmp_path: Path, width: int
) -> None:
    slurm = busy_slurm()
    slurm.set_job(42, array=6, task=1)
    text = text_of(seen(tmp_path, slurm), width)
    assert "6_1 bob" in " ".join(text.split())
    assert "42 bob" not in text
