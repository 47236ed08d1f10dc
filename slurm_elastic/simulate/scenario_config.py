"""Makes a scenario of a site's ``policies`` and ``checkpoint`` sections. It has one growth policy,
one order and one way to save jobs: those of the first public pool; a note names the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.pool_rules import rules_of
from slurm_elastic.policies.checkpoint.checkpoint import parse as parse_checkpoint
from slurm_elastic.policies.growth.capacity import AnyGrowth
from slurm_elastic.policies.growth.release import IdleOrder
from slurm_elastic.policies.growth.scaling import PoolRules
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.simulate.scenario import PoolModel, Scenario

NAME = "configured"  # the scenario's name in `--compare`


def configured(config: Config, base: Scenario, *, saves: bool) -> tuple[Scenario, list[str]]:
    """``base`` with the configured policies, and notes; ``saves``: spot jobs as configured."""
    rules = {pool.name: rules_of(config, pool) for pool in config.pools}
    models = tuple(_ruled(model, rules.get(model.name)) for model in base.pools)
    own = [(model, rules[model.name]) for model in models if model.name in rules]
    scenario, notes = replace(base, pools=models), []
    if own:
        first = next((rule for model, rule in own if model.public), own[0][1])
        order = base.order if first.order is None else first.order
        scenario = replace(scenario, growth=first.growth, order=order)
        notes += _different("growth", [(m.name, r.growth) for m, r in own], first.growth)
        notes += _different("order", [(m.name, r.order) for m, r in own], first.order)
    return (_saved(config, scenario, notes) if saves else scenario), notes


def _ruled(model: PoolModel, rule: PoolRules | None) -> PoolModel:
    if rule is None:
        return model
    release = model.release if rule.release is None else rule.release
    return replace(model, release=release, min_idle=rule.min_idle)


def _different(
    what: str,
    found: Sequence[tuple[str, AnyGrowth | IdleOrder | None]],
    used: AnyGrowth | IdleOrder | None,
) -> list[str]:
    others = [name for name, value in found if value != used]
    if not others:
        return []
    name = used or "as Slurm takes them"
    if not isinstance(name, str):
        name = text_of(name)
    return [f"{NAME}: {what} of pool {', '.join(others)} is not simulated, {name} is for all"]


def _saved(config: Config, scenario: Scenario, notes: list[str]) -> Scenario:
    """Have jobs saved if a method is set for those that name none."""
    names = {model.name for model in scenario.pools if model.on_spot}
    on_spot = [pool for pool in config.pools if pool.name in names]
    if not on_spot:
        return scenario
    texts = [_policy(config, pool) for pool in on_spot]
    used = texts[0]
    others = [pool.name for pool, text in zip(on_spot, texts, strict=True) if text != used]
    saved = f"saved by {used}" if used != "none" else "not saved, as checkpoint.method is none"
    notes.append(f"{NAME}: jobs on spot machines are {saved}")
    if others:
        notes.append(f"{NAME}: checkpoints of pool {', '.join(others)} are not simulated")
    return replace(
        scenario, checkpoints=replace(scenario.checkpoints, policy=parse_checkpoint(used))
    )


def _policy(config: Config, pool: PoolSettings) -> str:
    method = pool.checkpoint.method or config.checkpoint.method
    if method == "none":
        return "none"
    return pool.checkpoint.policy or config.checkpoint.policy
