"""Makes a scenario of a site's ``policies`` and ``checkpoint`` sections.

A scenario has only one growth policy, one order and one checkpoint policy. It takes those of the
first public pool, and a note names the pools with other policies.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.checkpoint_kinds import policy_of
from slurm_elastic.config.pool_rules import rules_of
from slurm_elastic.policies.growth.capacity import AnyGrowth
from slurm_elastic.policies.growth.release import IdleOrder
from slurm_elastic.policies.growth.scaling import PoolRules
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.simulate.scenario import PoolModel, Scenario

NAME = "configured"  # the scenario's name in `--compare`


def configured(config: Config, base: Scenario, *, saves: bool) -> tuple[Scenario, list[str]]:
    """Return ``base`` with the configured policies, and notes. ``saves``: also take over how jobs
    on spot machines are saved.
    """
    rules = {pool.name: rules_of(config, pool) for pool in config.pools}
    models = tuple(_with_rules(model, rules.get(model.name)) for model in base.pools)
    configured_models = [(model, rules[model.name]) for model in models if model.name in rules]
    scenario, notes = replace(base, pools=models), []
    if configured_models:
        used_rules = next(
            (rule for model, rule in configured_models if model.public), configured_models[0][1]
        )
        order = base.order if used_rules.order is None else used_rules.order
        scenario = replace(scenario, growth=used_rules.growth, order=order)
        notes += _note_differences(
            "growth", [(m.name, r.growth) for m, r in configured_models], used_rules.growth
        )
        notes += _note_differences(
            "order", [(m.name, r.order) for m, r in configured_models], used_rules.order
        )
    return (_with_checkpoints(config, scenario, notes) if saves else scenario), notes


def _with_rules(model: PoolModel, rule: PoolRules | None) -> PoolModel:
    if rule is None:
        return model
    release = model.release if rule.release is None else rule.release
    return replace(model, release=release, min_idle=rule.min_idle)


def _note_differences(
    setting: str,
    value_by_pool: Sequence[tuple[str, AnyGrowth | IdleOrder | None]],
    used: AnyGrowth | IdleOrder | None,
) -> list[str]:
    differing = [name for name, value in value_by_pool if value != used]
    if not differing:
        return []
    name = used or "as Slurm takes them"
    if not isinstance(name, str):
        name = text_of(name)
    return [f"{NAME}: {setting} of pool {', '.join(differing)} is not simulated: {name} for all"]


def _with_checkpoints(config: Config, scenario: Scenario, notes: list[str]) -> Scenario:
    """Return the scenario with the checkpoint policy for jobs that name no method."""
    names = {model.name for model in scenario.pools if model.on_spot}
    on_spot = [pool for pool in config.pools if pool.name in names]
    if not on_spot:
        return scenario
    texts = [_checkpoint_policy(config, pool) for pool in on_spot]
    used = texts[0]
    differing_pools = [pool.name for pool, text in zip(on_spot, texts, strict=True) if text != used]
    saved = f"saved by {used}" if used != "none" else "not saved, as checkpoint.method is none"
    notes.append(f"{NAME}: jobs on spot machines are {saved}")
    if differing_pools:
        notes.append(f"{NAME}: checkpoints of pool {', '.join(differing_pools)} are not simulated")
    return replace(scenario, checkpoints=replace(scenario.checkpoints, policy=policy_of(used)))


def _checkpoint_policy(config: Config, pool: PoolSettings) -> str:
    method = pool.checkpoint.method or config.checkpoint.method
    if method == "none":
        return "none"
    return pool.checkpoint.policy or config.checkpoint.policy
