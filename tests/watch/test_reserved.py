"""Reserved capacity in status, offers and doctor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cost_cases import YAML, T, machine
from msgspec.structs import replace
from rich.console import Console

from slurm_elastic.base.local_time import minute
from slurm_elastic.cli.jobs import offers
from slurm_elastic.cli.operate.status_tables import render
from slurm_elastic.config import Config, configfile
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.memory import Machine
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.doctor.reserved import reserved
from slurm_elastic.watch.view import Facts, status_view

DAY = 86400.0
NOW = T + 30 * DAY
ONE = '{{name: year, type: small, count: 2, from: "2027-01-15", to: "{end}", upfront: 2}}'
PLAN = (
    '{{name: plan, kind: savings-plan, from: "2027-01-15", to: "2027-06-01", commit: 0.5,'
    " families: {{small: 0.5}}}}"
)


def site(directory: Path, *rows: str, end: str = "2027-06-01", markets: str = "") -> Config:
    """The cases' site with these reservations of cloud aws."""
    state = directory / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    listed = "".join(f"\n      - {row}" for row in rows)
    text = YAML.replace("price: 0.36}}}}\n", f"price: 0.36}}}}}}}}\n    reservations:{listed}\n", 1)
    text = text.replace("cpus: 4, memory: 8G}}", f"cpus: 4, memory: 8G{markets}}}}}", 1)
    path = directory / "slurm-elastic.yaml"
    path.write_text(text.format(state=state, user="root", end=end))
    path.chmod(0o644)
    return configfile.load(path)


def bought(
    node: str, market: Market, on: str = "", launched: float = NOW - 60, type_: str = "small"
) -> Machine:
    one = replace(machine(node, launched, 0.36, market=market), reservation=on)
    one = replace(one, instance_type=type_)
    return Machine(instance=one, pool="burst", worst_price=0.36)


def lines(config: Config, machines: Sequence[Machine], width: int = 100) -> list[str]:
    view = status_view(config, Facts(now=NOW, nodes={}, machines=machines))
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        render(view, console)
    return [line for line in captured.get().splitlines() if line.startswith("Reserved: ")]


def test_status_counts_what_the_cloud_bills_on_the_reservation(tmp_path: Path) -> None:
    config = site(tmp_path, ONE)
    end = minute(config.clouds[0].held[0].ends_at)
    none = f"Reserved: year of aws: 0 of 2 small in use until {end}"
    assert lines(config, []) == [none]
    assert lines(config, [bought("pub1", Market.SPOT)]) == [none]
    assert lines(config, [bought("pub1", Market.ON_DEMAND, type_="large")]) == [none]
    machines = [
        bought("pub1", Market.RESERVED, "year"), *(bought(f"pub{n}", Market.ON_DEMAND)
        for n in range(2, 5)),
    ]  # fmt: skip
    assert lines(config, machines[:2]) == [none.replace("0 of 2", "2 of 2")]
    assert lines(config, machines) == [none.replace("0 of 2", "2 of 2")]
    view = status_view(config, Facts(now=NOW, nodes={}, machines=machines, private=("nodes",)))
    assert view.reserved == (), "a user who does not see all machines would see too few"


def test_a_savings_plan_is_counted_in_dollars(tmp_path: Path) -> None:
    config = site(tmp_path, PLAN)
    machines = [bought(f"pub{n}", Market.ON_DEMAND) for n in range(1, 3)]
    (line,) = lines(config, machines)
    assert line.startswith("Reserved: plan of aws: $0.36 of $0.50/h in use until 2027-0")
    (line,) = lines(config, [*machines, *machines, *machines])
    assert line.startswith("Reserved: plan of aws: $0.50 of $0.50/h in use")


def test_before_and_after_its_term_it_has_no_line(tmp_path: Path) -> None:
    assert lines(site(tmp_path, ONE, end="2027-02-01"), []) == []
    late = ONE.replace('from: "2027-01-15"', 'from: "2027-05-01"')
    assert lines(site(tmp_path, late), []) == []


def findings(config: Config, *machines: Machine) -> list[Finding]:
    return list(reserved(config, machines, NOW))


def test_doctor_reports_one_that_ends_within_a_week(tmp_path: Path) -> None:
    used = bought("pub1", Market.RESERVED, "year")
    assert findings(site(tmp_path, ONE), used) == []
    (found,) = findings(site(tmp_path, ONE, end="2027-02-18"), used)
    assert found.level is FindingLevel.NOTE
    assert found.subject == "reservation year of aws"
    assert found.observed.startswith("ends in 3d 16h (2027-02-1")
    assert "then cost the price on demand" in found.observed


def test_doctor_reports_one_that_nobody_uses(tmp_path: Path) -> None:
    config = site(tmp_path, ONE)
    (found,) = findings(config)
    assert "no machine used it in the last 1d" in found.observed
    assert "/h" in found.observed
    assert findings(config, bought("pub1", Market.ON_DEMAND)) == []
    assert len(findings(config, bought("pub1", Market.SPOT))) == 1
    new = ONE.replace('from: "2027-01-15"', 'from: "2027-02-14"')
    assert findings(site(tmp_path, new)) == [], "it began less than a day ago"


def test_doctor_reports_one_that_no_pool_can_use(tmp_path: Path) -> None:
    used = bought("pub1", Market.RESERVED, "year")
    assert findings(site(tmp_path, ONE), used) == []
    spot = site(tmp_path, ONE, markets=", markets: [spot]")
    other_type = site(tmp_path, ONE)
    burst, rack = other_type.pools
    other_type = replace(other_type, pools=(replace(burst, instance_types=("large",)), rack))
    for config in (spot, other_type):
        (found,) = findings(config, used)
        assert found.level is FindingLevel.WRONG
        assert "no pool of cloud aws can use it: it is for small" in found.observed
        assert "markets: [reserved, ...]" in found.advice


def test_offers_shows_the_same_lines(tmp_path: Path) -> None:
    config = site(tmp_path, ONE, PLAN)
    ledger = Ledger(config.state / "ledger.db")
    one = bought("pub1", Market.RESERVED, "year")
    ledger.machines.adopt(one.instance, "burst", NOW - 60, 0.36)
    ledger.close()
    found = offers.gather(config, FakeSlurm(), NOW)
    assert [(row.name, row.used) for row in found.reserved] == [("year", 1), ("plan", 0)]
    console = Console(width=100, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        offers.render(found, console)
    assert "Reserved: year of aws: 1 of 2 small in use until" in captured.get()
    rack = offers.gather(config, FakeSlurm(), NOW, pool="rack")
    assert rack.reserved == (), "another cloud"
