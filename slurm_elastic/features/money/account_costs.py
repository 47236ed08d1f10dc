"""The costs of an account in a month, and its mail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from slurm_elastic.base.month import Month
from slurm_elastic.base.units import counted
from slurm_elastic.features.money.books import CostRows, charges
from slurm_elastic.features.money.cost_sums import on_demand_micro
from slurm_elastic.policies.money.cost_split import HOUR, WHOLE, Unused

MAX_ROWS = 20  # of users and of jobs in a mail


class AccountMonth(Struct, frozen=True, kw_only=True):
    """An account's costs in a month (micro-dollars): in all, on demand, by user, by job. ``hours``:
    its machine-hours.
    """

    account: str
    micro: int
    micro_on_demand: int
    hours: float
    users: Mapping[str, int]
    jobs: Mapping[str, int]


def account_months(books: CostRows) -> dict[str, AccountMonth]:
    """The costs of each account that used machines. The amounts equal those in ``cost``."""
    micro: defaultdict[str, int] = defaultdict(int)
    on_demand: defaultdict[str, float] = defaultdict(float)
    times: defaultdict[str, int] = defaultdict(int)
    users: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    jobs: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for charge in charges(books):
        for hour in charge.hours:
            for key, run_micro in hour.parts.items():
                if isinstance(key, Unused):
                    continue
                run = books.runs[key]
                micro[run.account] += run_micro
                on_demand[run.account] += on_demand_micro(charge, hour, key)
                times[run.account] += hour.weights[key]
                users[run.account][run.user] += run_micro
                jobs[run.account][run.label or str(run.job)] += run_micro
    return {
        account: AccountMonth(
            account=account,
            micro=micro[account],
            micro_on_demand=round(on_demand[account]),
            hours=times[account] / (HOUR * WHOLE),
            users=_highest_first(users[account]),
            jobs=_highest_first(jobs[account]),
        )
        for account in micro
        if account
    }


def _highest_first(micro: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(micro.items(), key=lambda row: (-row[1], row[0])))


def subject(cluster: str, month: Month, costs: AccountMonth) -> str:
    """The subject of the mail about an account's costs in ``month``."""
    return f"slurm-elastic {cluster}: {costs.account} in {month.name}: {_dollars(costs.micro)}"


def text(cluster: str, month: Month, costs: AccountMonth, earlier: AccountMonth | None) -> str:
    """The text of the mail. ``earlier``: the costs of the month before ``month`` (None: the account
    had none).
    """
    hours = f"{costs.hours:,.1f} machine-hours"
    jobs = counted(len(costs.jobs), "job")
    on_demand = f"{_dollars(costs.micro_on_demand)} for the same machine-hours{_saved(costs)}"
    span = f"--since {month}-01 --until {month.next}-01"
    return "\n".join([
        f"Account {costs.account} on cluster {cluster}, {month.name} (UTC)",
        "",
        f"Spent:     {_dollars(costs.micro)} for {jobs} in {hours}",
        f"On demand: {on_demand}",
        f"In {month.previous.name} it was {_dollars(earlier.micro if earlier else 0)}.",
        "",
        *_table("User", costs.users),
        "",
        *_table("Job", costs.jobs),
        "",
        "Machine time that no job used is not included.",
        f"Details: slurm-elastic cost --by job {span}",
        "",
    ])  # fmt: skip


def _saved(costs: AccountMonth) -> str:
    saving = costs.micro_on_demand - costs.micro
    if saving <= 0:
        return ""
    return f", so {_dollars(saving)} ({100 * saving / costs.micro_on_demand:.0f} %) was saved"


def _table(name: str, micro: Mapping[str, int]) -> Iterable[str]:
    """Rows of a name and dollars, the most expensive ones."""
    rows = [(_in_a_line(key), _dollars(amount)) for key, amount in micro.items()][:MAX_ROWS]
    width = max(len(name), *(len(key) for key, _ in rows), 1)
    amounts = max(len("Dollars"), *(len(dollars) for _, dollars in rows), 1)
    yield f"{name:<{width}}  {'Dollars':>{amounts}}"
    yield from (f"{key:<{width}}  {dollars:>{amounts}}" for key, dollars in rows)
    if len(micro) > MAX_ROWS:
        hidden = sum(list(micro.values())[MAX_ROWS:])
        yield f"and {len(micro) - MAX_ROWS} more, {_dollars(hidden)} together"


def _in_a_line(name: str) -> str:
    """A name without line breaks: users choose these names, which must not add lines to a mail."""
    return "".join(letter if letter.isprintable() else "?" for letter in name) or "(none)"


def _dollars(micro: int) -> str:
    digits = 2 if micro >= 100_000 or not micro else 4
    return f"${micro / 1e6:,.{digits}f}"
