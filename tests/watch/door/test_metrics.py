"""Metrics: what they say, that promtool and a real Prometheus take them, and that sums last."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ckpt_cases import migration_of
from ledger_cases import T0
from msgspec.structs import replace
from needs import unless
from patience import eventually
from ports import free_ports
from status_cases import busy_ledger, busy_slurm, config, config_file

from slurm_elastic.base.errors import CapacityError
from slurm_elastic.cli.main import main
from slurm_elastic.config import Config, HaSettings
from slurm_elastic.config.configfile import INSTALLED_COPY
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.features.money.usage_counters import LAG_S, CallTimes, settle
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.directive import Departure, Directive, LimitChange, Pause
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.model.memory import ChargedRun, Health
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.credentials import health_of
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.histograms import BUCKETS, observe, series
from slurm_elastic.watch.door.metrics import (
    COUNTERS,
    HISTOGRAMS,
    MAX_OFFERS,
    PREFIX,
    node_states,
    text,
)

ROOT = Path(__file__).parents[3]
RULES = ROOT / "etc" / "prometheus" / "slurm-elastic-alerts.yml"
BOARDS = sorted((ROOT / "etc" / "grafana").glob("*.json"))
NOW = T0 + 3700
CKPT = {"checkpoint_seconds": {"method": "criu"}, "migration_seconds": {"cause": "reclaim"}}
NEEDS = unless("promtool")


def samples(found: bytes) -> dict[str, float]:
    lines = [line for line in found.decode().splitlines() if line and line[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.fixture
def site(tmp_path: Path) -> Config:
    policies = SitePolicies(
        budget=Budget(per_month=100), account_budgets={"physics": Budget(per_day=10)}
    )
    made = config(tmp_path)
    return replace(made, policies=policies, limits=Limits(nodes=20, dollars_per_hour=9.0))


@pytest.fixture
def ledger(tmp_path: Path, site: Config) -> Iterator[Ledger]:
    made = busy_ledger(tmp_path / "ledger.db")
    made.health.beat("slurm-elasticd", NOW - 3, 1)
    yield made
    made.close()


def test_they_say_what_status_says(site: Config, ledger: Ledger) -> None:
    found = samples(text(site, NOW, node_states(site, NOW, busy_slurm())))
    assert found['slurm_elastic_nodes{cloud="aws",pool="general",state="booting"}'] == 2
    assert found['slurm_elastic_dollars_per_hour{basis="now",cloud="aws",market="spot"}'] == 0.12
    assert found['slurm_elastic_dollars_per_hour_limit{scope="cluster"}'] == 9
    assert found['slurm_elastic_budget_dollars{period="month",scope="cluster"}'] == 100
    assert found['slurm_elastic_budget_dollars{period="day",scope="account:physics"}'] == 10
    assert found['slurm_elastic_cloud_last_error{cloud="aws",code="auth"}'] == 1
    assert found["slurm_elastic_pools_paused"] == 1
    assert found['slurm_elastic_service_heartbeat_timestamp_seconds{service="slurm-elasticd"}'] == (
        NOW - 3
    )
    assert not any("job=" in name or "user=" in name for name in found)


def test_records_of_saves_that_cannot_be_read_do_not_silence_the_alert_on_their_service(
    site: Config, ledger: Ledger
) -> None:
    ledger.health.beat("slurm-elastic-ckptman", NOW - 900, 1)
    (site.state / FILE).write_bytes(b"no database" * 1000)
    found = samples(text(site, NOW))
    beat = 'slurm_elastic_service_heartbeat_timestamp_seconds{service="slurm-elastic-ckptman"}'
    assert found[beat] == NOW - 900


def test_credentials_have_their_end(site: Config, ledger: Ledger) -> None:
    ledger.health.report(health_of("aws", NOW + 99_999, NOW), health_of("rack", None, NOW))
    found = samples(text(site, NOW))
    name = 'slurm_elastic_credential_expiry_timestamp_seconds{cloud="aws"}'
    assert {n: v for n, v in found.items() if "expiry" in n} == {name: NOW + 99_999}


def test_orders_that_hold_are_counted_and_those_that_a_person_has_to_end_told_apart(
    site: Config, ledger: Ledger
) -> None:
    drain = Departure(verb="drain", about="cloud aws", nodes=("pub1",), scope="cloud:aws")
    new_image = Departure(verb="replace", about="pub2", nodes=("pub2",))
    rate = LimitChange(scope="", key="dollars_per_hour", value=4.0)
    for word, starts, until in (
        (Pause(scope="cloud:aws"), NOW - 60, None),
        (Pause(scope="pool:general"), NOW - 7200, None),
        (Pause(scope=""), NOW - 90_000, NOW),  # is over
        (drain, NOW - 30, NOW + 3600),
        (new_image, NOW - 10, None),  # is over when they have left
        (rate, NOW + 1, None),  # is still to come
    ):
        ledger.directives.give(
            Directive(word=word, who="ann", since=NOW - 90_000, starts=starts, until=until)
        )
    found = samples(text(site, NOW))
    assert {n: v for n, v in found.items() if n.startswith("slurm_elastic_directive")} == {
        'slurm_elastic_directives{ends="by_hand",order="pause"}': 2,
        'slurm_elastic_directives{ends="by_itself",order="drain"}': 1,
        'slurm_elastic_directives{ends="by_itself",order="replace"}': 1,
        'slurm_elastic_directive_oldest_seconds{ends="by_hand",order="pause"}': 7200,
        'slurm_elastic_directive_oldest_seconds{ends="by_itself",order="drain"}': 30,
        'slurm_elastic_directive_oldest_seconds{ends="by_itself",order="replace"}': 10,
    }


def test_without_a_ledger_that_is_what_they_say(tmp_path: Path) -> None:
    found = samples(text(config(tmp_path), NOW))
    assert found["slurm_elastic_ledger_usable"] == 0
    assert not any(name.startswith("slurm_elastic_machines") for name in found)


def test_slurm_that_does_not_answer_takes_its_own_part_away(
    site: Config, ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.health.report(Health(name="slurm", checked=NOW, error="down", code="slurm"))
    path = config_file(tmp_path)
    assert main(["--config", str(path), "metrics"]) == 0
    out, err = capsys.readouterr()
    found = samples(out.encode())
    assert found["slurm_elastic_slurm_reachable"] == 0
    assert not any(name.startswith("slurm_elastic_nodes") for name in found)
    assert found["slurm_elastic_ledger_usable"] == 1
    assert err.startswith("slurm-elastic: without nodes by state: ")


def test_a_file_is_there_whole_for_everybody(site: Config, ledger: Ledger, tmp_path: Path) -> None:
    path, output = config_file(tmp_path), tmp_path / "slurm-elastic.prom"
    assert main(["--config", str(path), "metrics", "--no-slurm", "--output", str(output)]) == 0
    assert "slurm_elastic_info" in output.read_text()
    assert output.stat().st_mode & 0o777 == 0o644
    assert not list(tmp_path.glob(".*.prom.*"))


def test_a_slip_in_the_configuration_leaves_the_metrics(
    site: Config, ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The services run on, and without metrics an alert would say that they are dead."""
    path = config_file(tmp_path)
    (path.parent / INSTALLED_COPY).write_text(path.read_text())
    path.write_text("clouds: [")
    assert main(["--config", str(path), "metrics", "--no-slurm"]) == 0
    out, err = capsys.readouterr()
    assert "slurm_elastic_info" in out
    assert str(path) in err


def test_sums_go_on_over_restarts_and_count_each_span_once(site: Config, tmp_path: Path) -> None:
    book = busy_ledger(tmp_path / "ledger.db")
    book.machines.record_registration("aws", ["i-0aaaaaaaaaaaaaaa1"], T0 + 190)
    book.usage.write([
        ChargedRun(job=42, begin=T0 + 195, end=T0 + 1195, label="42", account="physics",
            shares=(("pub1", 500_000),)),
    ])  # fmt: skip
    settle(site, book, T0 + LAG_S)
    book.close()
    for now in (T0 + 400, T0 + 410, T0 + 2000, T0 + 2001, T0 + 7200):
        book = Ledger(tmp_path / "ledger.db")
        settle(site, book, now)
        book.close()
    found = samples(text(site, T0 + 7200))
    spot = 'cloud="aws",market="spot",pool="general"'
    assert found[f"slurm_elastic_launched_total{{{spot}}}"] == 4
    assert found[f'slurm_elastic_ended_total{{{spot},reason="lost"}}'] == 1
    whole = found[f"slurm_elastic_dollars_total{{{spot}}}"]
    book = Ledger(tmp_path / "ledger.db", read_only=True)
    expected = sum(
        0.04 / 3600 * ((m.ended_at or T0 + 7200 - LAG_S) - m.instance.launched)
        for m in book.machines.live(ended_since=0.0)
        if m.instance.market == "spot"
    )
    book.close()
    assert whole == pytest.approx(expected, abs=1e-5)
    assert found['slurm_elastic_account_dollars_total{account="physics"}'] == pytest.approx(
        0.04 / 3600 * 1000 * 0.5, abs=1e-5
    )
    boot = 'slurm_elastic_boot_seconds_bucket{cloud="aws",le="%s",pool="general"}'
    assert [found[boot % le] for le in ("60", "90", "+Inf")] == [0, 1, 1]
    delay = 'slurm_elastic_start_delay_seconds_bucket{cloud="aws",le="%s"}'
    assert [found[delay % le] for le in ("2", "5", "+Inf")] == [0, 1, 1]


def test_each_refusal_counts(site: Config, ledger: Ledger) -> None:
    refused = Exclusion(kind=COOL_DOWN, scope="aws/c6i/eu-west-1a/spot", code="NoRoom", until=NOW)
    ledger.exclusions.add(refused)
    ledger.exclusions.add(refused)
    found = samples(text(site, NOW))
    name = 'slurm_elastic_refusals_total{cloud="aws",code="NoRoom",market="spot"}'
    assert found[name] == 2


def test_calls_to_clouds_are_timed_and_told_by_how_they_end() -> None:
    class Cloud:
        def offers(self, pool: object) -> list[object]:
            return [pool]

        def launch(self, spec: object) -> None:
            raise CapacityError("aws", "NoRoom", "none left")

        def instances(self) -> None: ...
        def terminate(self, ids: object) -> None: ...
        def notices(self) -> None: ...

    times, cloud = CallTimes(), Cloud()
    times.watch("aws", cloud)  # type: ignore[arg-type]
    assert cloud.offers(1) == [1]
    with pytest.raises(CapacityError):
        cloud.launch(None)
    counts = times.take()
    assert counts[series("api_calls", cloud="aws", call="offers", outcome="ok")] == 1
    assert counts[series("api_calls", cloud="aws", call="launch", outcome="capacity")] == 1
    assert counts['api_seconds_bucket{call="offers",cloud="aws",le="+Inf"}'] == 1
    assert times.take() == {}


def test_names_of_clouds_may_have_any_characters(site: Config, ledger: Ledger) -> None:
    odd = 'a"b\\c\nd'
    ledger.usage.count({series("refusals", cloud=odd, market="spot", code="x"): 3})
    found = samples(text(site, NOW))
    (name,) = [n for n in found if 'code="x"' in n]
    assert 'cloud="a\\"b\\\\c\\nd"' in name


def test_many_types_and_zones_are_one(site: Config, ledger: Ledger) -> None:
    from status_cases import general_pool

    from tests.ledger_cases import instance

    for number in range(MAX_OFFERS + 1):
        one = instance(f"i-x{number}", f"x{number}", f"gx{number}")
        ledger.machines.adopt(replace(one, zone=f"zone-{number}"), general_pool().name, NOW)
    found = samples(text(site, NOW))
    rows = [name for name in found if name.startswith("slurm_elastic_machines{")]
    assert len(rows) <= 10
    assert all('zone="*"' in name for name in rows)


def everything(site: Config, ledger: Ledger) -> None:
    """A site on which all of it has happened."""
    state = CheckpointState(site.state / FILE)
    state.put(migration_of(42, 1000))
    state.add_image(Image(
        job=42, label="42", attempt=0, number=1, method="fake", node="pub1", taken=T0,
        seconds=3.0, size=1000,
    ))  # fmt: skip
    state.close()
    step(site, ledger)


def step(site: Config, ledger: Ledger) -> None:
    """Everything happens once more."""
    aws = {"cloud": "aws", "pool": "general"}
    counts = {
        series("launched", market="spot", **aws): 1.0,
        series("ended", market="spot", reason="asked", **aws): 1.0,
        series("ended", market="spot", reason="lost", **aws): 1.0,
        series("refusals", cloud="aws", market="spot", code="x"): 1.0,
        series("boot_failures", pool="general"): 1.0,
        series("dollars", market="spot", **aws): 1.0,
        series("unused_dollars", reason="idle", **aws): 0.2,
        series("account_dollars", account="physics"): 0.5,
        series("api_calls", cloud="aws", call="launch", outcome="ok"): 1.0,
    }
    found = dict.fromkeys(counts, 0.0) | counts
    more: defaultdict[str, float] = defaultdict(float, found)
    for name in BUCKETS.keys() - CKPT.keys():
        labels = {"cloud": "aws"}
        labels |= {"pool": "general"} if name == "boot_seconds" else {}
        labels |= {"call": "launch"} if name == "api_seconds" else {}
        observe(more, name, 20.0, **labels)
    ledger.usage.count(more)
    saves: defaultdict[str, float] = defaultdict(float)
    for name, labels in CKPT.items():
        observe(saves, name, 20.0, **labels)
    state = CheckpointState(site.state / FILE)
    state.count(saves)
    state.count({
        'lost_node_seconds_total{cause="reclaim"}': 30.0,
        'ckpt_saves_total{method="criu",outcome="saved"}': 1.0,
        'ckpt_migrations_total{method="criu",outcome="back"}': 1.0,
        'ckpt_notices_total{kind="interruption"}': 1.0,
        'ckpt_decisions_total{kind="save"}': 1.0,
    })  # fmt: skip
    state.close()


def test_every_metric_of_the_page_is_there_and_no_other(site: Config, ledger: Ledger) -> None:
    everything(site, ledger)
    said = set(re.findall(r"`(slurm_elastic_\w+)", (ROOT / "docs" / "metrics.md").read_text()))
    mine = replace(site.slurm, user=str(os.geteuid()))
    pair = replace(site, slurm=mine, ha=HaSettings(directory=site.state_dir))
    found = text(pair, NOW, node_states(site, NOW, busy_slurm())).decode()
    there = {name for name, _ in re.findall(r"# TYPE (\w+) (\w+)", found)}
    assert there == said
    assert {f"{PREFIX}{name}_total" for name in COUNTERS} <= there
    assert {f"{PREFIX}{name}" for name in HISTOGRAMS} <= there


def test_the_unit_of_the_timer_writes_what_node_exporter_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As etc/slurm-elastic-metrics.service has the command, but for where things are."""
    file, place = config_file(tmp_path), tmp_path / "slurm-elastic.prom"
    busy_ledger(tmp_path / "ledger.db").close()
    unit = (ROOT / "etc" / "slurm-elastic-metrics.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)", unit.replace("\\\n", ""), re.MULTILINE)
    words = line.split()
    moved = {
        "/etc/slurm-elastic/slurm-elastic.yaml": str(file),
        "/run/slurm-elastic-metrics/slurm-elastic.prom": str(place),
    }
    assert words[:2] == ["/usr/bin/env", "slurm-elastic"]
    assert main([moved.get(word, word) for word in words[2:]]) == 0
    assert "without nodes by state" in capsys.readouterr().err  # no Slurm answers here
    assert "slurm_elastic_info" in place.read_text()
    assert place.stat().st_mode & 0o777 == 0o644


# promtool and Prometheus


def promtool(*words: str, stdin: bytes = b"", cwd: Path | None = None) -> None:
    done = subprocess.run(
        ["/usr/bin/promtool", *words], input=stdin, cwd=cwd, capture_output=True, timeout=120,
        check=False,
    )  # fmt: skip
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, said


@NEEDS
def test_promtool_finds_nothing_to_blame_in_metrics(site: Config, ledger: Ledger) -> None:
    everything(site, ledger)
    promtool("check", "metrics", stdin=text(site, NOW, node_states(site, NOW, busy_slurm())))


@NEEDS
def test_each_alert_comes_when_it_should_and_not_before(tmp_path: Path) -> None:
    promtool("check", "rules", str(RULES))
    tests = ROOT / "tests" / "data" / "alerts_test.yml"
    for path in (RULES, tests):
        shutil.copy(path, tmp_path)
    promtool("test", "rules", tests.name, cwd=tmp_path)
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert len(alerts) == 15
    fired = re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", tests.read_text())
    silent = re.findall(r"alertname: (\w+), exp_alerts: \[\]", tests.read_text())
    assert set(fired) == set(silent) == alerts


def expressions() -> list[tuple[str, str]]:
    found = []
    for path in BOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            found += [(f"{path.stem}: {panel['title']}", t["expr"]) for t in panel["targets"]]
    return found


def rules() -> list[tuple[str, str]]:
    import yaml

    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for rule in group["rules"]]


@NEEDS
@pytest.mark.e2e
def test_every_panel_has_data_in_a_real_prometheus(
    site: Config, ledger: Ledger, tmp_path: Path
) -> None:
    """Without the ``or vector(0)`` that keeps an empty panel from saying No data."""
    everything(site, ledger)
    port, own = free_ports(2)
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 2s}\n"
        f"rule_files: [{RULES}]\n"
        "scrape_configs:\n"
        "  - job_name: slurm-elastic\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    served = scraped(site, port)
    prometheus = subprocess.Popen(
        ["/usr/bin/prometheus", f"--config.file={tmp_path}/prometheus.yml",
         f"--storage.tsdb.path={tmp_path}/tsdb", f"--web.listen-address=127.0.0.1:{own}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        empty = dict(expressions())

        def all_have_data() -> bool:
            step(site, ledger)
            time.sleep(2)
            for title, expression in list(empty.items()):
                if ask(own, expression):
                    del empty[title]
            return not empty

        eventually(all_have_data, 60, told=lambda: empty)
        for title, expression in rules():
            assert ask(own, expression) is not None, title
    finally:
        served.shutdown()
        served.server_close()
        prometheus.terminate()
        prometheus.wait(60)


def scraped(site: Config, port: int) -> ThreadingHTTPServer:
    """In place of node_exporter, which hands the file's lines on as they are."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = text(site, NOW, node_states(site, NOW, busy_slurm()))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, *args: object) -> None: ...

    served = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=served.serve_forever).start()
    return served


def ask(port: int, expression: str) -> list[object] | None:
    """The samples; None where Prometheus is not there yet, or does not understand."""
    for old, new in ((" or vector(0)", ""), ("$instance", ".*"), ("[$__rate_interval]", "[1m]")):
        expression = expression.replace(old, new)
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=30
        ) as answer:
            return list(json.load(answer)["data"]["result"])
    except OSError:
        return None
