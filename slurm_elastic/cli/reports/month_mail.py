"""``report --mail``: the mails about a month to the owners of accounts, sent or shown now."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from slurm_elastic.base.account import trusted
from slurm_elastic.base.errors import SlurmElasticError, reason_of
from slurm_elastic.base.month import Month
from slurm_elastic.base.pages import page
from slurm_elastic.base.units import counted
from slurm_elastic.cli.orders.giving_orders import is_confirmed
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config
from slurm_elastic.features.news.account_mails import AccountMail, account_mails
from slurm_elastic.features.news.telling import mail_program, send_mail


def require_rights(config: Config) -> None:
    """SlurmElasticError unless this user may read the costs of all accounts."""
    if os.geteuid() not in trusted(config.slurm.user):
        raise SlurmElasticError(
            f"--mail is for root and {config.slurm.user}: the mails name the users of each account"
        )


def mail_month(config: Config, month: Month, now: float, *, to: str, dry: bool) -> int:
    """Send the mails of the month, or print them if ``dry``. Exit 1 if a mail fails, 2 after "no".

    ``to``: the only recipient, "" for the owners. SlurmElasticError if there is no mail.
    """
    mails = account_mails(config, month, now, to=to)
    if not mails and to:
        raise SlurmElasticError(
            f"no mail: in {month.name} no account spent money. Jobs without an account"
            " (sbatch --account) are in no mail"
        )
    if not mails:
        raise SlurmElasticError(
            f"no mail: in {month.name} no account with an address spent money"
            f" (notify.accounts and notify.coordinators, {page('report')}); --to ADDRESS tries it"
        )
    if now < month.end:
        print(f"{month.name} is not over, so its sums will still grow", file=sys.stderr)
    if dry:
        print("\n".join(map(_shown, mails)), end="")
        return 0
    # slurm-elasticd records only its own mails, so owners may get a second one from it.
    question = f"Send {counted(len(mails), 'mail')} to the owners of accounts now?"
    if not to and not is_confirmed(f"{question} slurm-elasticd also mails each month once."):
        print("nothing was sent", file=sys.stderr)
        return 2
    return _send(config, mails)


def _send(config: Config, mails: Sequence[AccountMail]) -> int:
    failed = 0
    for mail in mails:
        subject = f"account {mail.account} to {', '.join(mail.addresses)}"
        try:
            send_mail(config, mail.addresses, mail.subject, mail.text)
        except (OSError, subprocess.SubprocessError) as error:
            failed += 1
            problem = f"{mail_program(config)}: {reason_of(error)}"
            print(visible(f"not sent: {subject}: {problem}"), file=sys.stderr)
        else:
            print(visible(f"sent: {subject}"))
    return 1 if failed else 0


def _shown(mail: AccountMail) -> str:
    header = f"To: {', '.join(mail.addresses)}\nSubject: {mail.subject}"
    return f"{visible(header)}\n\n{mail.text}"
