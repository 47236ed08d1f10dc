"""Mails the owners of accounts the costs of each month, once after its end.

The ledger records each mail before it is sent, so that neither a restart nor another head sends it
again. The sums run in a process of their own, because a month of a large site takes seconds.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from msgspec import Struct

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.month import Month, month_at
from slurm_elastic.base.processes.bounded_process import run_within
from slurm_elastic.config import Config
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.money.account_costs import AccountMonth, account_months, subject, text
from slurm_elastic.features.money.books import read_books
from slurm_elastic.features.news.telling import send_mail
from slurm_elastic.slurm.client.accounting import AccountingCli
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.decisions import MONTHLY

log = logging.getLogger(__name__)

PERIOD_S = 600.0
MAX_PER_LOOK = 10
"""Mails of one look: 60 an hour, which no mail server minds."""
DELAY_S = 3600.0
"""Seconds after the end of a month until its mails are sent, so that the ends of its last jobs are
recorded.
"""
WINDOW_S = 7 * 86400.0
"""Seconds after the end of a month after which it is not mailed. A site that sets the key gets no
mail about a month that was over before.
"""
SUMS_TIMEOUT_S = 300.0


class AccountMail(Struct, frozen=True, kw_only=True):
    """A mail to send."""

    account: str
    addresses: tuple[str, ...]
    subject: str
    text: str


def join(site: Site) -> Extensions | None:
    """Join if the owners of accounts get mails."""
    notify = site.config.notify
    if not notify.accounts and not notify.coordinators:
        return None
    return Extensions(parts=[("account-mails", lambda worker: AccountMails(site, worker))])


class AccountMails(Part):
    """``task``: the periodic task that the daemon runs."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self.task = SiteTask(site, worker, self.look, "account-mails", period=PERIOD_S)
        self._month: Month | None = None
        self._due: dict[str, AccountMail] = {}  # by key, not known to be sent

    def look(self) -> None:
        """Send the mails of the last month that were not sent yet, a few at a time."""
        now = self._site.now()
        month = month_at(now).previous
        if not month.end + DELAY_S <= now < month.end + WINDOW_S:
            return
        if self._month != month:
            self._due = self._mails_of(month, now)
            # Only now: if the sums fail, the next look computes them again.
            self._month = month
        if not self._due:
            return
        # One at a time, because a mail program may hang: the mails that a stop leaves unsent must
        # not count as sent, and the stop waits for one mail alone.
        for _ in range(MAX_PER_LOOK):
            if self._site.wait(0.0) or not self._send_next(now):
                return

    def _send_next(self, now: float) -> bool:
        """Send one mail that was not sent yet. Return whether there was one."""
        claimed = self._site.ledger.decisions.claim_monthly(list(self._due), now, 1)
        for key in claimed:
            self._send(self._due.pop(key))
        if not claimed:  # all others were sent before, perhaps by another head
            self._due = {}
        return bool(claimed)

    def _mails_of(self, month: Month, now: float) -> dict[str, AccountMail]:
        mails = run_within(
            SUMS_TIMEOUT_S, "no mails are sent; `cost --by account` shows the figures",
            account_mails, self._site.config, month, now,
        )  # fmt: skip
        return {f"{MONTHLY}{month}/{mail.account}": mail for mail in mails}

    def _send(self, mail: AccountMail) -> None:
        try:
            # The mail counts as sent already, so a failure is logged and not repeated.
            send_mail(self._site.config, mail.addresses, mail.subject, mail.text)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("mail about an account failed account=%s error=%s", mail.account, error)
        else:
            log.info("mailed the costs of an account account=%s", mail.account)


def account_mails(config: Config, month: Month, now: float, to: str = "") -> list[AccountMail]:
    """The mails about a month: of the accounts that spent money and have addresses.

    ``to``: gets all of these mails instead, for a trial. If no account has an address yet, the
    trial is about all accounts that spent money.
    """
    path = config.state / "ledger.db"
    with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
        of_month = account_months(read_books(config, ledger, month.begin, month.end, now))
        earlier = month.previous
        of_earlier = account_months(read_books(config, ledger, earlier.begin, earlier.end, now))
    addresses = addresses_of(config, of_month)
    if to:
        addresses = dict.fromkeys(addresses or of_month, (to,))
    return [
        _mail(config, month, costs, of_earlier.get(account), addresses[account])
        for account, costs in sorted(of_month.items())
        if account in addresses and costs.micro
    ]


def _mail(
    config: Config,
    month: Month,
    costs: AccountMonth,
    earlier: AccountMonth | None,
    addresses: Sequence[str],
) -> AccountMail:
    cluster = config.cluster.name
    return AccountMail(
        account=costs.account,
        addresses=tuple(addresses),
        subject=subject(cluster, month, costs),
        text=text(cluster, month, costs, earlier),
    )


def addresses_of(config: Config, accounts: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """By account: the addresses of ``notify.accounts`` and the coordinators' user names. The mail
    program delivers to user names, too.
    """
    coordinators: Mapping[str, tuple[str, ...]] = {}
    if config.notify.coordinators:
        try:
            coordinators = AccountingCli(config.slurm).coordinators()
        except SlurmError as error:
            log.warning("the coordinators of accounts are unknown: %s", error)
    by_account = {
        account: (*config.notify.accounts.get(account, ()), *coordinators.get(account, ()))
        for account in accounts
    }
    return {account: tuple(dict.fromkeys(names)) for account, names in by_account.items() if names}
