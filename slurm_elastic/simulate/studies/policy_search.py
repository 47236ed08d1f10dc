"""Simulates policies on a history, then the neighbours of the best ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.policies.policy_text import split
from slurm_elastic.simulate.engine import Progress
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED
from slurm_elastic.simulate.setting import Setting
from slurm_elastic.simulate.studies.kept import KeptResults
from slurm_elastic.simulate.studies.search import Tried, front, grid, neighbours
from slurm_elastic.simulate.studies.together import figures_of


def first_policies(policies: str | None) -> list[str]:
    """The policies of the first round, the site's configuration first."""
    return list(dict.fromkeys([CONFIGURED, *(split(policies) if policies else grid())]))


def search(
    setting: Setting,
    names: Sequence[str],
    rounds: int,
    *,
    strict: bool = False,
    advance: Progress | None = None,
    cores: int | None = None,
    kept: KeptResults | None = None,
) -> Iterator[Tried]:
    """Simulate the policies ``names``, then the neighbours of the best ones, in ``rounds``. Yield
    each result as soon as it is known. ``cores``, ``kept``: see ``figures_of``.

    A policy that does not fit this site is skipped. ``strict``: it is a ConfigError, except the
    site's own configuration.
    """
    tried: list[Tried] = []
    for _ in range(rounds):
        scenarios = dict(_fitting(setting, names, strict=strict))
        results = figures_of(
            setting.jobs, [*scenarios.values()], setting.history.start, advance, cores, kept
        )
        for name, figures in zip(scenarios, results, strict=True):
            tried.append(Tried(policy=name, figures=figures))
            yield tried[-1]
        names = neighbours([t.policy for t in front(tried)], [t.policy for t in tried])


def _fitting(
    setting: Setting, names: Sequence[str], *, strict: bool
) -> Iterator[tuple[str, Scenario]]:
    """Yield the scenarios of the policies that fit this site."""
    for name in names:
        try:
            yield name, setting.scenario(name)
        except ConfigError:
            if strict and name != CONFIGURED:
                raise
