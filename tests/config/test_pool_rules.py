"""The rules that the ``policies`` sections come to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_elastic.config import Config, configfile
from slurm_elastic.config.pool_rules import fail_safe, inert, parse_window, rules_of
from slurm_elastic.policies.growth.capacity import Bursts, Slurm
from slurm_elastic.policies.growth.release import Delayed, Flagged, Idle
from slurm_elastic.policies.money.bounds import Window

GOOD = (Path(__file__).parents[1] / "data" / "config" / "good.yaml").read_text()


def config(site: str = "", aws: str = "", gpu: str = "") -> Config:
    text = GOOD.replace("limits:\n", f"policies: {{{site}}}\nlimits:\n", 1)
    text = text.replace(
        "    region: us-east-1\n", f"    region: us-east-1\n    policies: {{{aws}}}\n"
    )
    return configfile.parse(f"{text}    policies: {{{gpu}}}\n", "site.yaml")


def test_the_narrower_section_goes_first_key_by_key() -> None:
    made = config(
        "growth: bursts(waste=60), release: idle(300), expected_boot_time: 3m",
        "billing_increment: 1h, release: delayed(before_end=180)",
        "growth: slurm, min_idle_machines: 1",
    )
    std, pub, gpu = (rules_of(made, pool) for pool in made.pools)
    assert (std.growth, std.release, std.lease) == (Bursts(waste=60), Idle(300), 1)
    assert (pub.growth, pub.release, pub.lease) == (Bursts(waste=60), Delayed(before_end=180), 3600)
    assert (gpu.growth, gpu.release, gpu.min_idle) == (Slurm(), Delayed(before_end=180), 1)
    assert {std.boot, pub.boot, gpu.boot} == {180}
    assert (std.public, pub.public) == (False, True)


@pytest.mark.parametrize(
    ("sections", "seconds"),
    [
        ({}, 600),
        ({"aws": "release: idle(900)"}, 1200),
        ({"aws": "release: idle(60)"}, 600),
        ({"aws": "billing_increment: 1h, release: delayed(before_end=180)"}, 3900),
        ({"aws": "release: delayed(on_premises=1200)"}, 1500),
        ({"gpu": "min_idle_machines: 1"}, 86400),
        ({"aws": "growth: steady_stream, release: flagged"}, 86400),
    ],
)
def test_the_fail_safe_is_later_than_the_daemon(sections: dict[str, str], seconds: int) -> None:
    made = config(**sections)
    assert fail_safe(made, made.cloud("aws")) == seconds
    assert fail_safe(made, made.cloud("onprem")) == 600


@pytest.mark.parametrize(("sections", "releases"), [
    ({}, [None, None]),
    ({"gpu": "min_idle_machines: 1"}, [Idle(600), Idle(600)]),
    ({"gpu": "growth: steady_stream, release: flagged"}, [Idle(600), Flagged()]),
    ({"aws": "release: idle(60)", "gpu": "release: idle(900)"}, [Idle(60), Idle(900)]),
    ({"gpu": "release: idle(900)"}, [Idle(600), Idle(900)]),
    ({"gpu": "release: idle(60)"}, [None, Idle(60)]),
])  # fmt: skip
def test_no_pool_waits_for_the_late_fail_safe_of_another_pool(
    sections: dict[str, str], releases: list[Idle | Flagged | None]
) -> None:
    """Slurm has one SuspendTime for all pools of a cloud."""
    made = config(**sections)
    of_cloud = [pool for pool in made.pools if pool.cloud == "aws"]
    assert [rules_of(made, pool).release for pool in of_cloud] == releases
    assert rules_of(made, made.pools[0]).release is None


def test_without_a_word_all_is_left_to_slurm() -> None:
    assert inert(configfile.parse(GOOD, "site.yaml"))
    assert inert(config("poll_interval: 5s"))
    for sections in (
        {"site": "billing_increment: 1h"},
        {"aws": "budget: {per_day: 5}"},
        {"gpu": "min_idle_machines: 1"},
    ):
        assert not inert(config(**sections))


def test_windows() -> None:
    assert parse_window("20:00-06:30") == Window(72000, 23400)
    for wrong in ("20-06", "24:00-06:00", "06:00-06:00", "6:00-7:00", ""):
        with pytest.raises(ValueError, match=re.escape(repr(wrong))):
            parse_window(wrong)
