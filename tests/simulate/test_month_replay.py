"""A month's own jobs with and without public clouds, and under other policies."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.config import configfile
from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.histories.swf import History
from slurm_elastic.simulate.setting import Options, Setting, setting_of, with_boots
from slurm_elastic.simulate.studies import month_replay as module
from slurm_elastic.simulate.studies.month_replay import OVERLOAD, replay
from tests.cost_cases import config_file

START = 1_790_812_800  # 2026-10-01
DAY = 86400


def setting(tmp_path: Path, jobs: Jobs, static: tuple[int, int] | None = (1, 4)) -> Setting:
    config = configfile.load(config_file(tmp_path))
    history = History("made up")
    history.jobs, history.header = jobs, {"UnixStartTime": str(START)}
    public = [pool for pool in config.pools if pool.name == "burst"]
    config = config.__class__(**{
        name: getattr(config, name) for name in config.__struct_fields__
    } | {"pools": tuple(public)})  # fmt: skip
    return setting_of(history, config, Options(static=static))


def pairs(count: int = 28, procs: int = 4) -> Jobs:
    """Each day two jobs of an hour that fill the site's only node: the second one waits."""
    return Jobs(
        Job(number=2 * n + k, submit=n * DAY, run=3600, limit=3600, procs=procs)
        for n in range(count)
        for k in (1, 2)
    )


def test_clouds_avoid_the_wait_of_each_second_job(tmp_path: Path) -> None:
    """Without clouds it waits an hour for the first; with them 120 s for a boot."""
    found = replay(setting(tmp_path, pairs()), 60)
    assert (found.jobs, found.never, found.is_complete) == (56, 0, True)
    assert found.without is not None
    assert (found.without.dollars, found.without.mean_wait) == (0.0, 1800.0)
    assert found.configured.mean_wait == pytest.approx(60.0)
    assert found.avoided is not None
    hours = 28 * (3600 - 120) / 3600
    assert found.avoided.value == pytest.approx(hours)
    assert found.avoided.low == found.avoided.high == pytest.approx(hours), "all days are the same"


def test_the_curve_falls_and_begins_at_no_money(tmp_path: Path) -> None:
    found = replay(setting(tmp_path, pairs()), 60)
    assert found.curve[0] == found.without
    for cheaper, dearer in zip(found.curve, found.curve[1:], strict=False):
        assert cheaper.dollars < dearer.dollars
        assert cheaper.mean_wait > dearer.mean_wait
    assert len(found.curve) <= module.MAX_POINTS
    assert found.tried > 40


def test_the_configuration_never_lies_below_the_curve(tmp_path: Path) -> None:
    """Its amounts are below a cent here, and policies that differ little are left out."""
    jobs = Jobs(
        Job(number=n, submit=n * DAY + n % 3 * 20, run=30 + n, limit=600, procs=1 + n % 4)
        for n in range(1, 29)
    )
    for static in ((1, 1), (1, 4)):
        found = replay(setting(tmp_path, jobs, static=static), 60)
        now = found.configured
        bought = [p.mean_wait for p in found.curve if p.dollars <= now.dollars + 1e-6]
        assert not bought or min(bought) <= now.mean_wait or now in found.curve
        assert now in found.curve or bought


def test_days_that_differ_make_a_range(tmp_path: Path) -> None:
    jobs = pairs(14)
    for number in range(30):
        jobs.append(Job(number=100 + number, submit=20 * DAY, run=3600, limit=3600, procs=4))
    jobs.append(Job(number=999, submit=27 * DAY, run=60, limit=60, procs=1))
    found = replay(setting(tmp_path, jobs), 60)
    assert found.avoided is not None
    assert found.avoided.low < found.avoided.value < found.avoided.high
    assert replay(setting(tmp_path, jobs), 60).avoided == found.avoided, "it is the same each time"


def test_jobs_that_only_clouds_can_run_are_counted_apart(tmp_path: Path) -> None:
    jobs = pairs()
    jobs.append(Job(number=900, submit=28 * DAY, run=60, limit=60, procs=8))
    found = replay(setting(tmp_path, jobs), 60)
    assert found.never == 1
    assert all(point.policy != "none" for point in found.curve), "its wait is of other jobs"


def test_a_site_without_machines_has_nothing_to_compare_with(tmp_path: Path) -> None:
    found = replay(setting(tmp_path, pairs(), static=None), 60)
    assert (found.without, found.avoided) == (None, None)
    assert "no machines of its own" in found.no_comparison
    assert found.curve


def test_too_much_work_for_the_site_is_told(tmp_path: Path) -> None:
    jobs = Jobs(Job(number=n, submit=n * 600, run=3600, limit=3600, procs=4) for n in range(1, 200))
    assert OVERLOAD in replay(setting(tmp_path, jobs), 60).notes


def test_a_few_jobs_of_minutes_are_no_overload(tmp_path: Path) -> None:
    jobs = Jobs(Job(number=n, submit=n, run=3600, limit=3600, procs=4) for n in range(1, 9))
    notes = replay(setting(tmp_path, jobs), 60).notes
    assert OVERLOAD not in notes
    assert notes[0] == "each machine is assumed to boot in 2m (policies.expected_boot_time)"


def test_measured_boots_are_simulated_and_named(tmp_path: Path) -> None:
    boots = {"burst": BootTimes(((1, 600.0),), measured=31)}
    found = replay(with_boots(setting(tmp_path, pairs()), boots), 60)
    assert found.configured.mean_wait == pytest.approx(300.0), "each second job waits for a boot"
    assert found.notes[0] == "each machine boots in 10m, the median of 31 measured boots"


def test_a_measured_boot_never_refuses_the_sites_own_policies(tmp_path: Path) -> None:
    """idle(0) with the growth of Slurm works only without a boot, as the site configured it."""
    made = setting(tmp_path, pairs())
    pools = tuple(
        replace(pool, release=Idle(0), boot=BootTimes(((1, 0.0),))) if pool.public else pool
        for pool in made.configured.pools
    )
    made = replace(made, configured=replace(made.configured, growth=Slurm(), pools=pools))
    assert not made.configured.problems()
    found = with_boots(made, {"burst": BootTimes(((1, 600.0),), measured=31)})
    assert not found.configured.problems()
    assert found.configured == made.configured


def test_the_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations that take too long are ended in the middle, and the report has the others."""
    real = module.simulate

    def slow(jobs: Jobs, scenario: object, start: int) -> object:
        pools = getattr(scenario, "pools", ())
        if not any(pool.public for pool in pools):
            time.sleep(60)
        return real(jobs, scenario, start)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "simulate", slow)
    began = time.monotonic()
    found = replay(setting(tmp_path, pairs()), 4)
    assert time.monotonic() - began < 40
    assert found.without is None
    assert "too long to simulate" in found.no_comparison

    monkeypatch.setattr(module, "simulate", lambda *_: time.sleep(60))
    with pytest.raises(SlurmElasticError, match="56 jobs takes longer than"):
        replay(setting(tmp_path, pairs()), 0.5)
