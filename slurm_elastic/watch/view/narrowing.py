"""Narrows what ``status`` shows to one cloud or one pool. Pure functions."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.model.directive import Word
from slurm_elastic.model.exclusion import offer_scope
from slurm_elastic.watch.view import status_view
from slurm_elastic.watch.view.checkpoints import CheckpointFacts
from slurm_elastic.watch.view.kept import waits_of
from slurm_elastic.watch.view.rows import Facts, StatusView


def view_of_part(config: Config, facts: Facts, cloud: str | None, pool: str | None) -> StatusView:
    """Return the status of one cloud or pool, as if there were no other.

    The queue, and the sums and limits of the whole cluster and of a pool's cloud stay, because they
    bind each part.
    Raises ConfigError if no cloud or pool has that name.
    """
    if cloud is None and pool is None:
        return status_view(config, facts)
    # The answers need all pools: a job that no pool of the part fits may fit another one.
    waits = waits_of(config, facts)
    view = status_view(*narrowed(config, facts, cloud, pool), waits)
    names = (f"cloud {cloud}" if cloud else "", f"pool {pool}" if pool else "")
    part_name = ", ".join(filter(None, names))
    whole = status_view(config, facts, waits)
    shown_clouds = {row.name for row in view.clouds}
    clouds = tuple(row for row in whole.clouds if row.name in shown_clouds)
    return replace(
        view, site=whole.site, clouds=clouds, queue=whole.queue, site_nodes=None, part=part_name
    )


def narrowed(
    config: Config, facts: Facts, cloud: str | None, pool: str | None
) -> tuple[Config, Facts]:
    """Return configuration and facts without the parts that are only about other clouds
    or pools.
    """
    pools = tuple(
        p for p in config.pools if pool in (None, p.name) and cloud in (None, p.cloud)
    )  # fmt: skip
    if pool is not None and not pools:
        raise ConfigError(_no_such("pool", pool, [p.name for p in config.pools], cloud))
    if cloud is not None and cloud not in {c.name for c in config.clouds}:
        raise ConfigError(_no_such("cloud", cloud, [c.name for c in config.clouds]))
    cloud_names = {p.cloud for p in pools} | ({cloud} if cloud else set())
    pool_names = {p.name for p in pools}
    other_clouds = {c.name for c in config.clouds} - cloud_names
    clouds = tuple(c for c in config.clouds if c.name in cloud_names)
    config = replace(config, clouds=clouds, pools=pools)
    nodes = {node for p in domain_pools(config, expand) for node in p.nodes}
    narrowed_facts = replace(
        facts,
        machines=[
            m for m in facts.machines
            if m.instance.cloud in cloud_names and (pool is None or m.pool in pool_names)
        ],
        open_launches=[launch for launch in facts.open_launches if launch.pool in pool_names],
        cool_downs=[c for c in facts.cool_downs if offer_scope(c.scope).cloud in cloud_names],
        holds=[hold for hold in facts.holds if hold.pool in pool_names],
        breakers=[breaker for breaker in facts.breakers if breaker.scope in pool_names],
        health=[health for health in facts.health if health.name not in other_clouds],
        spent={name: spent for name, spent in facts.spent.items() if name in {"", *cloud_names}},
        payers={},
        directives=[
            d for d in facts.directives if _concerns(d.word, cloud_names, pool_names, nodes)
        ],
    )  # fmt: skip
    return config, replace(narrowed_facts, checkpoints=_saves(nodes, narrowed_facts))


def _concerns(word: Word, clouds: set[str], pools: set[str], nodes: set[str]) -> bool:
    if word.node_names:
        return not nodes.isdisjoint(word.node_names)
    kind, _, name = word.scope.partition(":")
    if not word.scope:
        return True
    return name in (clouds if kind == "cloud" else pools if kind == "pool" else ())


def _saves(nodes: set[str], narrowed_facts: Facts) -> CheckpointFacts | None:
    """Return the checkpoints, notices and moves of these nodes."""
    facts = narrowed_facts.checkpoints
    if facts is None:
        return None
    job_ids = {job.id for job in narrowed_facts.jobs if not nodes.isdisjoint(job.nodes)}
    node_or_instance = nodes | {m.instance.id for m in narrowed_facts.machines}
    return replace(
        facts,
        images=[image for image in facts.images if image.node in nodes],
        warned=[
            w
            for w in facts.warned
            if not node_or_instance.isdisjoint((w.notice.node, w.notice.instance))
        ],
        migrations=[move for move in facts.migrations if not nodes.isdisjoint(move.run.nodes)],
        unsavable=[run for run in facts.unsavable if run.job in job_ids],
    )


def _no_such(kind: str, name: str, names: list[str], cloud: str | None = None) -> str:
    where = f" in cloud {cloud}" if cloud else ""
    return f"there is no {kind} {name!r}{where}; there are {', '.join(names)}"
