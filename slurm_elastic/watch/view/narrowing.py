"""What ``status`` shows of one cloud or one pool. Pure functions."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.model.directive import Word
from slurm_elastic.model.exclusion import offer_scope
from slurm_elastic.watch.view import status_view
from slurm_elastic.watch.view.checkpoints import CheckpointFacts
from slurm_elastic.watch.view.rows import Facts, StatusView


def view_of_part(config: Config, facts: Facts, cloud: str | None, pool: str | None) -> StatusView:
    """As if there were no other cloud or pool, but for the sums and limits of the whole cluster:
    these bind each part. ConfigError if none has that name.
    """
    if cloud is None and pool is None:
        return status_view(config, facts)
    part = status_view(*narrowed(config, facts, cloud, pool))
    names = (f"cloud {cloud}" if cloud else "", f"pool {pool}" if pool else "")
    told = ", ".join(filter(None, names))
    return replace(part, site=status_view(config, facts).site, part=told)


def narrowed(
    config: Config, facts: Facts, cloud: str | None, pool: str | None
) -> tuple[Config, Facts]:
    """Both without what concerns others alone."""
    pools = tuple(
        p for p in config.pools if pool in (None, p.name) and cloud in (None, p.cloud)
    )  # fmt: skip
    if pool is not None and not pools:
        raise ConfigError(_nothing("pool", pool, [p.name for p in config.pools], cloud))
    if cloud is not None and cloud not in {c.name for c in config.clouds}:
        raise ConfigError(_nothing("cloud", cloud, [c.name for c in config.clouds]))
    names = {p.cloud for p in pools} | ({cloud} if cloud else set())
    own = {p.name for p in pools}
    others = {c.name for c in config.clouds} - names
    clouds = tuple(c for c in config.clouds if c.name in names)
    config = replace(config, clouds=clouds, pools=pools)
    nodes = {node for p in domain_pools(config, expand) for node in p.nodes}
    part = replace(
        facts,
        machines=[
            m for m in facts.machines
            if m.instance.cloud in names and (pool is None or m.pool in own)
        ],
        open_launches=[launch for launch in facts.open_launches if launch.pool in own],
        cool_downs=[c for c in facts.cool_downs if offer_scope(c.scope).cloud in names],
        holds=[hold for hold in facts.holds if hold.pool in own],
        breakers=[breaker for breaker in facts.breakers if breaker.scope in own],
        health=[health for health in facts.health if health.name not in others],
        spent={name: spent for name, spent in facts.spent.items() if name in {"", *names}},
        payers={},
        directives=[d for d in facts.directives if _concerns(d.word, names, own, nodes)],
    )  # fmt: skip
    return config, replace(part, checkpoints=_saves(nodes, part))


def _concerns(word: Word, clouds: set[str], pools: set[str], nodes: set[str]) -> bool:
    if word.single:
        return not nodes.isdisjoint(word.single)
    kind, _, name = word.scope.partition(":")
    if not word.scope:
        return True
    return name in (clouds if kind == "cloud" else pools if kind == "pool" else ())


def _saves(nodes: set[str], part: Facts) -> CheckpointFacts | None:
    """The saves, warnings and moves of these nodes."""
    facts = part.checkpoints
    if facts is None:
        return None
    there = {job.id for job in part.jobs if not nodes.isdisjoint(job.nodes)}
    here = nodes | {m.instance.id for m in part.machines}
    return replace(
        facts,
        images=[one for one in facts.images if one.node in nodes],
        warned=[w for w in facts.warned if not here.isdisjoint((w.notice.node, w.notice.instance))],
        migrations=[one for one in facts.migrations if not nodes.isdisjoint(one.run.nodes)],
        unsavable=[one for one in facts.unsavable if one.job in there],
    )


def _nothing(what: str, name: str, known: list[str], cloud: str | None = None) -> str:
    where = f" in cloud {cloud}" if cloud else ""
    return f"there is no {what} {name!r}{where}; there are {', '.join(known)}"
