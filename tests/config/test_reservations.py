"""Which reservations a cloud may have, and what is said of the others."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.reference import keys

SITE = """
cluster: {name: demo}
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    image: ami-1
    zones: [us-east-1a]
    types: {c5.large: {cpus: 2, memory: 4G, price: 0.085}}
    reservations:
      - {name: a, type: c5.large, count: 2, from: 2026-01-01, to: 2027-01-01, upfront: 100}
      - {name: b, kind: capacity-block, id: cr-1, type: c5.large, zone: us-east-1a, count: 3,
         from: "2026-01-01T11:30Z", to: 2027-01-01}
      - {name: c, kind: savings-plan, commit: 3, families: {c5: 0.3}, from: 2026-01-01T11:30+02:00,
         to: 2027-01-01}
pools:
  - {name: pool, cloud: aws, nodes: "c[1-2]", cpus: 2, memory: 4G, instance_types: [c5.large],
     markets: [reserved, on-demand]}
"""
NEW_YEAR_2026, NEW_YEAR_2027 = 1767225600.0, 1798761600.0


def parse(text: str) -> Config:
    return configfile.parse(text, "site.yaml")


def test_dates_are_read_and_written_back() -> None:
    config = parse(SITE)
    a, b, c = config.clouds[0].held
    assert (a.begins_at, a.ends_at) == (NEW_YEAR_2026, NEW_YEAR_2027)
    assert b.begins_at == NEW_YEAR_2026 + 11.5 * 3600
    assert c.begins_at == NEW_YEAR_2026 + 9.5 * 3600
    assert (a.machines_end_at, b.machines_end_at) == (None, NEW_YEAR_2027 - 1800)
    assert "from: '2026-01-01T00:00:00Z'" in configfile.dump(config)
    assert parse(configfile.dump(config)) == config


def test_its_keys_are_listed_as_the_file_has_them() -> None:
    places = {key.place for key in keys()}
    assert {"clouds.reservations.from", "clouds.reservations.families"} <= places


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("from: 2026-01-01, to", "from: soon, to", ".from: found 'soon' (text), expected a date"),
        ("from: 2026-01-01, to: 2027-01-01, up", "from: 2027-01-01, to: 2027-01-01, up",
         "(a).to: found 2027-01-01T00:00:00Z, expected a date after from, 2027-01-01T00:00:00Z"),
        ("2026-01-01T11:30Z", "2026-12-31T23:45Z", "expected more than 30 minutes after from"),
        ("type: c5.large, count: 2, ", "", "(a): found no 'type', expected the key type, which"),
        ("count: 2", "count: 2, id: cr-2", "expected no such key with kind reserved-instances"),
        ("id: cr-1, ", "", "found no 'id', expected the key id, which kind capacity-block needs"),
        ("commit: 3", "commit: 3, price: 1", "expected no such key with kind savings-plan"),
        ("families: {c5: 0.3}", "families: {c5: 30}", "expected a number from 0 to 1"),
        ("name: b,", "name: a,", "(a).name: found 'a' again, expected each one once in a cloud"),
        ("name: a,", "name: a b,", "expected letters, digits, '_' and '-', at most 40"),
        ("type: c5.large, zone", "type: c6.large, zone", "expected a type of cloud aws"),
        ("zone: us-east-1a", "zone: us-east-1b", "expected a zone of cloud aws"),
        ("location: public", "location: on-premises\n    endpoint: http://x",
         "expected none: machines of a cloud on-premises are paid already"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(before: str, after: str, said: str) -> None:
    assert before in SITE
    with pytest.raises(ConfigError) as caught:
        parse(SITE.replace(before, after, 1))
    assert any(said in problem for problem in caught.value.problems), caught.value


def test_other_clouds_have_only_what_needs_no_id() -> None:
    fake = (
        SITE.replace("provider: aws", "provider: fake")
        .replace("    region: us-east-1\n    image: ami-1\n    zones: [us-east-1a]\n", "")
        .replace("us-east-1a", "zone-1")
    )
    with pytest.raises(ConfigError) as caught:
        parse(fake)
    (problem,) = caught.value.problems
    assert "expected one of reserved-instances, savings-plan: provider fake cannot" in problem


def test_without_reservations_the_market_is_not_sold() -> None:
    begin, end = SITE.index("    reservations:"), SITE.index("pools:")
    with pytest.raises(ConfigError) as caught:
        parse(SITE[:begin] + SITE[end:])
    assert "expected a market of cloud aws: one of spot, on-demand" in str(caught.value)
