"""The part of what was read that concerns one cloud or one pool. Pure functions."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.directive import Word
from slurm_elastic.watch.view.rows import Facts


def narrowed(
    config: Config, facts: Facts, cloud: str | None, pool: str | None
) -> tuple[Config, Facts]:
    """Both as if there were no other cloud or pool. ConfigError if none has that name."""
    if cloud is None and pool is None:
        return config, facts
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
    part = replace(
        facts,
        machines=[
            m for m in facts.machines
            if m.instance.cloud in names and (pool is None or m.pool in own)
        ],
        open_launches=[launch for launch in facts.open_launches if launch.pool in own],
        cool_downs=[c for c in facts.cool_downs if c.scope.partition("/")[0] in names],
        holds=[hold for hold in facts.holds if hold.pool in own],
        breakers=[breaker for breaker in facts.breakers if breaker.scope in own],
        health=[health for health in facts.health if health.name not in others],
        spent={name: spent for name, spent in facts.spent.items() if name in names},
        payers={},
        directives=[d for d in facts.directives if _concerns(d.word, names, own)],
    )  # fmt: skip
    clouds = tuple(c for c in config.clouds if c.name in names)
    return replace(config, clouds=clouds, pools=pools, limits=Limits()), part


def _concerns(word: Word, clouds: set[str], pools: set[str]) -> bool:
    kind, _, name = word.scope.partition(":")
    if not word.scope:
        return not word.is_limit
    return name in (clouds if kind == "cloud" else pools if kind == "pool" else ())


def _nothing(what: str, name: str, known: list[str], cloud: str | None = None) -> str:
    where = f" in cloud {cloud}" if cloud else ""
    return f"there is no {what} {name!r}{where}; there are {', '.join(known)}"
