"""Sentences of `conf check` about submissions: the lines for a site's own job_submit.lua, jobs that
name no time, and clouds that do not fit into the list of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import brief
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.sections.access import Who
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.conf import allowed_partitions
from slurm_elastic.slurm.hooks import submit_filter

WRAP = "if slurm_elastic_wrap then slurm_job_submit = slurm_elastic_wrap(slurm_job_submit) end"
"""The line that calls the filter after the site's own function."""


def filter_lines(directory: Path) -> tuple[str, str]:
    """The two lines that a site's job_submit.lua ends with."""
    # Without pcall a missing file would be fatal for slurmctld.
    return f'pcall(dofile, "{directory / submit_filter.FILTER}")', WRAP


def manual_lua(site: SiteConf, text: str) -> Iterator[str]:
    """Where to put the two lines, if the site's own job_submit.lua does not call the filter."""
    path = site.directory / submit_filter.PLUGIN_SCRIPT
    if "lua" not in site.items("JobSubmitPlugins"):
        raise ConfigError(
            f"{path} exists, but JobSubmitPlugins has no lua: installing would switch it on;"
            " move it away, or put lua into JobSubmitPlugins first"
        )
    if submit_filter.calls_filter(text) and not submit_filter.loses_refusals(text):
        return
    line = submit_filter.final_return(text)
    place = f"before line {line}, which ends it" if line else "at its end"
    if submit_filter.calls_filter(text):
        yield (
            f"{path} calls slurm_elastic_submit without `return`, so jobs that the filter refuses"
            f" are submitted; take that call out, and put these two lines {place}:"
        )
    else:
        yield f"{path} is the site's own and stays as it is; put these two lines {place}:"
    for code in filter_lines(site.directory):
        yield f"    {code}"


def notices(config: Config, site: SiteConf) -> Iterator[str]:
    """Sentences about surprises for users who name neither a partition nor a time."""
    yield from _without_limit(config, site)
    unlisted = unlisted_partitions(config, site)
    if unlisted:
        yield (
            f"a list of partitions has at most {submit_filter.MAX_LIST_LENGTH} characters in Slurm:"
            f" {', '.join(unlisted)} do not fit in and get only jobs that name them; shorter names"
            " of partitions make room"
        )


def spot_notices(config: Config) -> Iterator[str]:
    """A sentence about clouds that get no job with ``--no-requeue``, so that workflow tools which
    write it never burst.
    """
    pools = domain_pools(config, expand)
    names = [
        cloud.name
        for cloud in config.clouds
        if not config.who_of(cloud).no_requeue_on_spot
        and (own_pools := [pool for pool in pools if pool.cloud == cloud.name])
        and not any(pool.steady_nodes for pool in own_pools)
    ]
    if names:
        noun = "cloud" if len(names) == 1 else "clouds"
        yield (
            f"jobs with --no-requeue, which Nextflow writes for each task, get nothing of {noun}"
            f" {', '.join(names)}, whose nodes may all have spot machines; to let them burst give a"
            " pool on_demand_nodes, or, if their tool submits lost jobs again:"
            " allow: {no_requeue_on_spot: [all]}"
        )


def unlisted_partitions(config: Config, site: SiteConf) -> list[str]:
    """Partitions of clouds for which the list of a job that fits everywhere has no room."""
    unlisted: list[str] = []
    for record, clouds in allowed_partitions.clouds_by_partition(config, site):
        open_partitions = {cloud.partition_name for cloud in clouds}
        ranked = [n for n in submit_filter.ranked_partitions(config) if n in open_partitions]
        # A comma stands before each name except the first.
        lengths = accumulate(len(name) + 1 for name in (record.names[0], *ranked))
        ends = zip(ranked, [*lengths][1:], strict=True)
        unlisted += [name for name, end in ends if end - 1 > submit_filter.MAX_LIST_LENGTH]
    return list(dict.fromkeys(unlisted))


def _without_limit(config: Config, site: SiteConf) -> Iterator[str]:
    """Sentences about jobs without a time, for each allowed partition without a limit."""
    for record, clouds in allowed_partitions.clouds_by_partition(config, site):
        limits = [record.get(key) for key in ("maxtime", "defaulttime")]
        if all(confvalues.seconds(limit) is None for limit in limits):
            yield from _without_limit_at(
                record.names[0], {c.name: config.who_of(c) for c in clouds}
            )


def _without_limit_at(partition: str, allowed: Mapping[str, Who]) -> Iterator[str]:
    closed = [name for name, rules in allowed.items() if rules.max_time and not rules.default_time]
    if closed:
        yield (
            f"partition {partition} has neither MaxTime nor DefaultTime: jobs that name no"
            f" time start in no cloud with a max_time ({', '.join(closed)}) until"
            " allow.default_time is set"
        )
    shorter = [f"{brief(rules.default_time)} in cloud {name}"
               for name, rules in allowed.items() if rules.default_time]  # fmt: skip
    if shorter:
        yield (
            f"partition {partition} has neither MaxTime nor DefaultTime: a job that names no"
            f" time ends after {', '.join(shorter)}, and never on the site's own nodes; arrays that"
            f" name none stay there. DefaultTime of partition {partition} makes both alike"
        )
