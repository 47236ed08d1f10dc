"""Checks the sections ``policies``, alone and together. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slurm_elastic.base.units import brief, format_duration
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.growth_kinds import checked_growth, growth_of
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.policies import Budget, CloudPolicies, Policies, SitePolicies
from slurm_elastic.config.pool_rules import WINDOW_FORM, parse_window, rules
from slurm_elastic.model.cluster import Location
from slurm_elastic.policies.growth.capacity import AnyGrowth, misfits
from slurm_elastic.policies.growth.release import Delayed, parse_release
from slurm_elastic.policies.growth.scaling import PoolRules


def _sections(draft: Draft) -> Iterator[tuple[KeyPath, Policies]]:
    found: list[tuple[KeyPath, Policies | None]] = [
        (("policies",), draft.value(("policies",), SitePolicies))
    ]
    found += [(("clouds", i, "policies"), c.policies) for i, c in draft.clouds.items()]
    found += [(("pools", i, "policies"), p.policies) for i, p in draft.pools.items()]
    yield from ((at, section) for at, section in found if section is not None)


def _texts(draft: Draft) -> None:
    """Each text must be a policy or a window."""
    for at, section in _sections(draft):
        _text(draft, (*at, "growth"), section.growth, checked_growth if draft.strict else growth_of)
        _text(draft, (*at, "release"), section.release, parse_release)
        for i, window in enumerate(section.windows):
            try:
                parse_window(window)
            except ValueError:
                draft.problems.add((*at, "windows", i), shown(window), WINDOW_FORM)


def _text(draft: Draft, at: KeyPath, text: str | None, parse: Callable[[str], object]) -> None:
    if text is None:
        return
    try:
        parse(text)
    except ValueError as error:
        draft.problems.add(at, shown(text), f"a policy: {error}")


def _budgets(draft: Draft) -> None:
    """A day's budget is at most its month's."""
    found: list[tuple[KeyPath, Budget]] = []
    for at, section in _sections(draft):
        if isinstance(section, CloudPolicies):
            found.append(((*at, "budget"), section.budget))
        if isinstance(section, SitePolicies):
            found += [((*at, key, name), own) for key, name, own in _of_payers(section)]
    for at, budget in found:
        day, month = budget.per_day, budget.per_month
        if day is not None and month is not None and day > month:
            draft.problems.add((*at, "per_day"), f"{day:g}", f"at most per_month, {month:g}")


def _of_payers(site: SitePolicies) -> Iterator[tuple[str, str, Budget]]:
    """Budgets of accounts and users: the key in the section, the name, and the budget."""
    yield from (("account_budgets", name, own) for name, own in site.account_budgets.items())
    yield from (("user_budgets", name, own) for name, own in site.user_budgets.items())


_PAYERS = {
    "account_budgets": (
        "budgets of accounts",
        re.compile(r"[^\sA-Z,'\"()|=]+"),
        "an account as Slurm has it: in lower case, without spaces and commas",
    ),
    "user_budgets": (
        "budgets of users",
        re.compile(r"[^\s,:/'\"()|=]+"),
        "a user's name, without spaces, commas and slashes",
    ),
}
"""What these budgets are, the form of their names, and that form in words."""


def _payer_budgets(draft: Draft) -> None:
    """A budget of an account or user is at most the cluster's, which would always run out first."""
    site = draft.section("policies", SitePolicies, SitePolicies())
    if site is None:
        return
    public = any(c.location is Location.PUBLIC for c in draft.clouds.values())
    for section in dict.fromkeys(section for section, _, _ in _of_payers(site)):
        if draft.all_whole and not public:
            expected = "a public cloud among the clouds: budgets stop no other"
            draft.problems.add(("policies", section), _PAYERS[section][0], expected)
    for section, name, budget in _of_payers(site):
        at = ("policies", section, name)
        _, form, expected = _PAYERS[section]
        if not form.fullmatch(name):
            draft.problems.add(at, shown(name), expected)
        if budget == Budget():
            draft.problems.add(at, "an empty mapping", "per_day, per_month or both")
        for key in ("per_day", "per_month"):
            own, all_ = getattr(budget, key), getattr(site.budget, key)
            if own is not None and all_ is not None and own > all_:
                draft.problems.add((*at, key), f"{own:g}", f"at most the cluster's, {all_:g}")


def _together(draft: Draft) -> None:
    """The policies of a pool, as the daemon will have them, must make sense together."""
    site = draft.section("policies", SitePolicies, SitePolicies())
    if site is None:
        return
    for i, pool in draft.pools.items():
        cloud = draft.cloud_of(pool)
        if cloud is None:
            continue
        try:
            own = rules(site, cloud, pool)
        except ValueError:
            continue  # _texts complains of it
        at = ("pools", i)
        odd = misfits(own.growth, own.release, own.lease, own.boot, own.min_idle)
        for why in (*odd, *_odd(own, site.look)):
            found = f"growth {_name(own.growth)} with release {_name(own.release)}"
            draft.problems.add(at, found, f"policies that go together: {why}")
        count = len(draft.nodes.get(i, ()))
        if count and own.min_idle > (pool.max_nodes or count):
            expected = f"at most {pool.max_nodes or count}, the machines that the pool may have"
            draft.problems.add((*at, "policies", "min_idle"), f"{own.min_idle}", expected)


def _odd(own: PoolRules, look: float) -> Iterator[str]:
    """Why these rules make no sense for a daemon that looks every ``look`` seconds."""
    release = own.release
    if isinstance(release, Delayed) and own.public and own.lease > 1 and look >= release.before_end:
        yield (
            f"delayed lets go in the last {brief(release.before_end)} of a lease, which a look"
            f" every {format_duration(look)} may miss"
        )


def _name(policy: AnyGrowth | object) -> str:
    config = getattr(policy, "__struct_config__", None)
    return str(config.tag) if config is not None else "by Slurm"


POLICIES_FIT: tuple[Callable[[Draft], None], ...] = (_texts, _budgets, _payer_budgets, _together)
