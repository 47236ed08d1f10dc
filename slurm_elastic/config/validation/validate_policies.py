"""Checks the sections ``policies``, alone and together. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slurm_elastic.base.units import brief, format_duration
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.growth_kinds import checked_growth, growth_of
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.policy_choice import PLUS, with_policy
from slurm_elastic.config.pool_rules import WINDOW_FORM, bounds_of, parse_window, rules
from slurm_elastic.config.release_kinds import checked_release, release_of
from slurm_elastic.config.sections.policies import (
    Choose,
    CloudPolicies,
    PayerBudget,
    Policies,
    SitePolicies,
)
from slurm_elastic.model.cluster import Location
from slurm_elastic.policies.growth.capacity import AnyGrowth, misfits
from slurm_elastic.policies.growth.release import Delayed, IdleOrder
from slurm_elastic.policies.growth.scaling import PoolRules
from slurm_elastic.policies.money.bounds import UNBOUNDED
from slurm_elastic.policies.policy_text import split


def _sections(draft: Draft) -> Iterator[tuple[KeyPath, Policies]]:
    sections: list[tuple[KeyPath, Policies | None]] = [
        (("policies",), draft.value(("policies",), SitePolicies))
    ]
    sections += [(("clouds", i, "policies"), c.policies) for i, c in draft.clouds.items()]
    sections += [(("pools", i, "policies"), p.policies) for i, p in draft.pools.items()]
    yield from ((path, section) for path, section in sections if section is not None)


def _texts(draft: Draft) -> None:
    """Check that each text is a policy or a window."""
    for path, section in _sections(draft):
        _text(
            draft, (*path, "growth"), section.growth, checked_growth if draft.strict else growth_of
        )
        _text(
            draft,
            (*path, "release"),
            section.release,
            checked_release if draft.strict else release_of,
        )
        for i, window in enumerate(section.start_windows):
            try:
                parse_window(window)
            except ValueError:
                draft.problems.add((*path, "start_windows", i), shown(window), WINDOW_FORM)


def _text(draft: Draft, path: KeyPath, text: str | None, parse: Callable[[str], object]) -> None:
    if text is None:
        return
    try:
        parse(text)
    except ValueError as error:
        draft.problems.add(path, shown(text), f"a policy: {error}")


def _intervals(draft: Draft) -> None:
    site = draft.section("policies", SitePolicies, SitePolicies())
    # The default of the maximum is for the usual interval.
    longest = draft.value(("policies", "max_poll_interval"), float)
    if site is not None and longest is not None and longest < site.poll_interval:
        expected = f"at least poll_interval, {format_duration(site.poll_interval)}"
        actual = str(format_duration(longest))
        draft.problems.add(("policies", "max_poll_interval"), actual, expected)


def _budgets(draft: Draft) -> None:
    """Check that a day's budget is not above its month's."""
    budgets: list[tuple[KeyPath, PayerBudget]] = []
    for path, section in _sections(draft):
        if isinstance(section, CloudPolicies):
            budgets.append(((*path, "budget"), section.budget))
        if isinstance(section, SitePolicies):
            budgets += [
                ((*path, key, name), payer_budget)
                for key, name, payer_budget in _payers_of(section)
            ]
    for path, budget in budgets:
        day, month = budget.per_day, budget.per_month
        if day is not None and month is not None and day > month:
            draft.problems.add((*path, "per_day"), f"{day:g}", f"at most per_month, {month:g}")


def _payers_of(site: SitePolicies) -> Iterator[tuple[str, str, PayerBudget]]:
    """The budgets of accounts and users: the key in the section, the name, and the budget."""
    yield from (("account_budgets", name, budget) for name, budget in site.account_budgets.items())
    yield from (("user_budgets", name, budget) for name, budget in site.user_budgets.items())


ACCOUNT = re.compile(r"[^\sA-Z,'\"()|=]+")
ACCOUNT_EXPECTED = "an account as Slurm has it: in lower case, without spaces and commas"
_PAYERS = {
    "account_budgets": ("budgets of accounts", ACCOUNT, ACCOUNT_EXPECTED),
    "user_budgets": (
        "budgets of users",
        re.compile(r"[^\s,:/'\"()|=]+"),
        "a user's name, without spaces, commas and slashes",
    ),
}
"""For each key: the noun, the form of the names, and that form in words."""


def _payer_budgets(draft: Draft) -> None:
    """Check that the budget of an account or user is not above the cluster's, which would always
    run out first.
    """
    site = draft.section("policies", SitePolicies, SitePolicies())
    if site is None:
        return
    public = any(c.location is Location.PUBLIC for c in draft.clouds.values())
    for section in dict.fromkeys(section for section, _, _ in _payers_of(site)):
        if draft.all_whole and not public:
            expected = "a public cloud among the clouds: budgets stop no other"
            draft.problems.add(("policies", section), _PAYERS[section][0], expected)
    for section, name, budget in _payers_of(site):
        path = ("policies", section, name)
        _, form, expected = _PAYERS[section]
        if not form.fullmatch(name):
            draft.problems.add(path, shown(name), expected)
        if bounds_of(budget) == UNBOUNDED:
            draft.problems.add(path, "an empty mapping", "per_day, per_month or both")
        for key in ("per_day", "per_month"):
            amount, cluster_amount = getattr(budget, key), getattr(site.budget, key)
            if amount is not None and cluster_amount is not None and amount > cluster_amount:
                draft.problems.add(
                    (*path, key), f"{amount:g}", f"at most the cluster's, {cluster_amount:g}"
                )


def _candidates(draft: Draft) -> None:
    """Check that each text to choose from is a policy, and fits the pools that would follow it."""
    site = draft.section("policies", SitePolicies, SitePolicies())
    if site is None:
        return
    if site.choose != Choose() and not site.choose.among:
        # Without policies there is nothing to choose, and the other keys would do nothing.
        expected = "policies such as [on_demand+idle(600)]"
        draft.problems.add(("policies", "choose", "among"), "no policies", expected)
    for number, text in enumerate(site.choose.among):
        if problem := _of_candidate(draft, site, text):
            path = ("policies", "choose", "among", number)
            draft.problems.add(path, shown(text), f"GROWTH[+RELEASE][+ORDER]: {problem}")


def _of_candidate(draft: Draft, site: SitePolicies, text: str) -> str:
    """Return what is wrong with a policy to choose from. Empty if nothing is."""
    try:
        section = with_policy(site, text)
        checked_growth(section.growth or "")
        for part in split(text, PLUS)[1:]:
            if part not in tuple(IdleOrder):
                checked_release(part)
        for _, pool, cloud in draft.pools_with_clouds:
            each = rules(section, cloud, pool)
            reasons = misfits(each.growth, each.release, each.lease, each.boot, each.min_idle)
            if reasons:
                return f"{reasons[0]} (pool {pool.name})"
    except ValueError as error:
        return str(error)
    return ""


def _together(draft: Draft) -> None:
    """Check that the policies of a pool make sense together, as the daemon will combine them."""
    site = draft.section("policies", SitePolicies, SitePolicies())
    if site is None:
        return
    for i, pool in draft.pools.items():
        cloud = draft.cloud_of(pool)
        if cloud is None:
            continue
        try:
            pool_rules = rules(site, cloud, pool)
        except ValueError:
            continue  # _texts complains of it
        path = ("pools", i)
        misfit_reasons = misfits(
            pool_rules.growth,
            pool_rules.release,
            pool_rules.lease,
            pool_rules.boot,
            pool_rules.min_idle,
        )
        for reason in (*misfit_reasons, *_late_looks(pool_rules, site.poll_interval)):
            actual = f"growth {_name(pool_rules.growth)} with release {_name(pool_rules.release)}"
            draft.problems.add(path, actual, f"policies that go together: {reason}")
        count = len(draft.nodes.get(i, ()))
        if count and pool_rules.min_idle > (pool.max_nodes or count):
            expected = f"at most {pool.max_nodes or count}, the machines that the pool may have"
            draft.problems.add(
                (*path, "policies", "min_idle_machines"), f"{pool_rules.min_idle}", expected
            )


def _late_looks(pool_rules: PoolRules, look: float) -> Iterator[str]:
    """Why these rules make no sense for a daemon that decides every ``look`` seconds."""
    release = pool_rules.release
    if (
        isinstance(release, Delayed)
        and pool_rules.public
        and pool_rules.lease > 1
        and look >= release.before_end
    ):
        yield (
            f"delayed releases machines in the last {brief(release.before_end)} of a lease, which a"
            f" look every {format_duration(look)} may miss"
        )


def _name(policy: AnyGrowth | object) -> str:
    config = getattr(policy, "__struct_config__", None)
    return str(config.tag) if config is not None else "by Slurm"


POLICIES_FIT: tuple[Callable[[Draft], None], ...] = (
    _texts,
    _intervals,
    _budgets,
    _payer_budgets,
    _candidates,
    _together,
)
