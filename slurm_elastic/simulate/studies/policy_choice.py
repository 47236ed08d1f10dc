"""Simulates the candidates of ``policies.choose`` on the cluster's own history. It runs in a
bounded process, because the jobs of weeks take memory and time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.policies.planning.choice import PolicyOutcome
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories import sacct
from slurm_elastic.simulate.setting import Options, setting_of

MIN_JOBS = 20
"""The least number of jobs of a history that says something."""


def outcomes(
    config: Config,
    rows: Iterable[Mapping[str, object]],
    static: tuple[int, int] | None,
    policies: Sequence[str],
    seconds: float,
) -> tuple[PolicyOutcome, ...]:
    """Simulate each policy. ConfigError if the history is too short, or if ``seconds`` do not
    suffice for all.
    """
    end_at = time.monotonic() + seconds
    history = sacct.of_rows(rows)
    if len(history.jobs) < MIN_JOBS:
        raise ConfigError(f"found {len(history.jobs)} jobs, expected at least {MIN_JOBS}")
    setting = setting_of(history, config, Options(static=static))
    simulated: list[PolicyOutcome] = []
    for policy in policies:
        if time.monotonic() > end_at:
            raise ConfigError(f"{len(simulated)} of {len(policies)} policies took all the time")
        figures = simulate(setting.jobs, setting.scenario(policy), history.start).figures
        simulated.append(
            PolicyOutcome(
                policy=policy, cost=figures.cost, wait=figures.mean_wait, jobs=figures.jobs,
                unserved=figures.unserved + figures.too_large,
            )
        )  # fmt: skip
    return tuple(simulated)
