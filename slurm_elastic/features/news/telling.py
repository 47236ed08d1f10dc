"""Notifies people of occasions by mail, a webhook or a command. No other work waits for it.

The ledger records each notification, so a restart does not repeat it. A separate thread delivers.
A notification is recorded only when the queue has room for it. Until then it waits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import sqlite3
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from http.client import InvalidURL
from urllib.parse import urlsplit

import msgspec

from slurm_elastic.base import trust
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.processes.lasting import LastingThread
from slurm_elastic.ckptman.unannounced_ends import unannounced_ends
from slurm_elastic.config import Config
from slurm_elastic.config.sections.telling import Notify
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.launching.budget import (
    apply_directives,
    read_payer_spending,
    read_spending,
)
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.news.notify_occasions import (
    SLURM,
    SUMMED,
    Occasion,
    important_first,
    of_breakers,
    of_budget,
    of_credentials,
    of_denials,
    of_health,
    of_moves,
    of_other_head,
    of_rate,
    of_records,
    of_slurm,
    proven_over,
    summarised,
)
from slurm_elastic.features.news.user_mail import MOST_READ, UserMail, UserMails, key_of
from slurm_elastic.model.directive import scope_in_words
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration
from slurm_elastic.state.ckptstate.schema import FILE

log = logging.getLogger(__name__)

PERIOD_S = 30.0
MAX_PER_HOUR = 20
"""At most this many notifications of each kind per hour; others wait. A bound for all kinds
together would let a night of lost jobs silence a cloud that refuses the credentials.
"""
RETURN_AFTER_S = 600.0
"""Seconds between two notifications of a trouble that was over in between and has come back."""
HOUR_S = 3600.0
DAY_S = 86400.0
MAX_USER_MAILS_PER_HOUR = 200
"""At most this many messages per hour to users about their own jobs."""
MAX_QUEUED = 100
MAX_QUEUED_BEFORE_USERS = 20
"""Messages to users join the queue only up to this length. A slow mail program must not keep
the notifications of administrators for longer than ten minutes.
"""
DELIVERY_TIMEOUT_S = 30.0
"""Time-out of one delivery."""
_MAX_ADDRESS_LENGTH = 4096
_UNUSABLE = (
    "notify.webhook: the address cannot be used: expected http(s)://HOST[:PORT]/PATH in ASCII, "
    "without a user and a password"
)
MAIL = "/usr/bin/mail"
PATH = "/usr/local/bin:/usr/bin:/bin"


def join(site: Site) -> Extensions | None:
    """Join if a way to notify somebody is configured."""
    if not site.config.notify.anybody:
        return None
    return Extensions(parts=[("notify", lambda worker: Teller(site, worker))])


class Teller(Part):
    """Notifies administrators and users. ``task``: the periodic task that the daemon runs.
    ``close`` drops the undelivered notifications.
    """

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site, self._notify = site, site.config.notify
        self.task = SiteTask(site, worker, self.look, "notify", period=PERIOD_S, only_looks=True)
        self._user_mails = UserMails(site.slurm.mail_of, site.config.cluster.name)
        self._unsent_mails: dict[str, UserMail] = {}
        self._slurm_failing_at: float | None = None
        self._queue: queue.Queue[Occasion | UserMail | None] = queue.Queue(MAX_QUEUED)
        self._thread = LastingThread("notify", self._deliver)
        self._thread.start()

    def close(self) -> None:
        """End the thread when it has delivered the queue. Do not wait for it."""
        # If the queue is full, the thread gets no order to end. That is harmless: it is a daemon
        # thread and ends with the process.
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)

    def look(self) -> None:
        """Queue the notifications of new occasions."""
        if self._notify.administrators or not self._notify.users:
            self._tell_administrators()
        if self._notify.users:
            self._tell_users()

    def _tell_users(self) -> None:
        site = self._site
        now, day = site.now(), max(self._notify.repeat_interval, DAY_S)
        moves = moves_of_a_day(site)
        current_keys = {key_of(move) for move in moves}
        mails = {mail.key: mail for mail in self._user_mails.find(moves)}
        mails |= {key: mail for key, mail in self._unsent_mails.items() if key in current_keys}
        # Before the claim, because a ledger that cannot be written refuses it.
        self._unsent_mails = mails
        if not mails:
            return
        # The ledger records a message before it is sent, as for administrators. Messages beyond the
        # bound wait for the next hour, and messages without room wait for a later look.
        for key in site.ledger.decisions.claim_messages(
            [*mails][:MOST_READ], now, day, MAX_USER_MAILS_PER_HOUR, HOUR_S,
            room=self._room(MAX_QUEUED_BEFORE_USERS),
        ):  # fmt: skip
            self.hand_over(mails.pop(key))

    def _room(self, max_queued: int) -> int:
        """How many more messages the queue takes until it has ``max_queued``."""
        # Only looks add messages, so the room cannot shrink before they are added.
        return max(max_queued - self._queue.qsize(), 0)

    def _tell_administrators(self) -> None:
        site = self._site
        now = site.now()
        occasions = (
            occasion
            for occasion in all_occasions(site, self._slurm_failing_s())
            if occasion.event in self._notify.events
        )
        occasion_by_key: dict[str, Occasion] = {}
        for occasion in important_first(occasions):
            occasion_by_key.setdefault(occasion.key, occasion)
        breakers = site.ledger.exclusions.breakers()
        # The ledger records an occasion before it is sent. After a crash in between it is not sent;
        # the other order could send it again and again.
        claimed_keys = site.ledger.decisions.claim_messages(
            [*occasion_by_key],
            now,
            self._notify.repeat_interval,
            MAX_PER_HOUR,
            HOUR_S,
            over=proven_over(site.ledger.health.all(), breakers, [*site.pools]),
            return_after_s=RETURN_AFTER_S,
            summed=SUMMED,
            room=self._room(MAX_QUEUED),
        )
        for occasion in summarised(occasion_by_key[key] for key in claimed_keys):
            self.hand_over(occasion)

    def _slurm_failing_s(self) -> float:
        """For how long Slurm has failed at each look. 0 if it did not fail at the last look."""
        rows = self._site.ledger.health.all()
        if not any(row.name == SLURM and row.error is not None for row in rows):
            self._slurm_failing_at = None
            return 0.0
        clock = self._site.monotonic()
        if self._slurm_failing_at is None:
            self._slurm_failing_at = clock
        return clock - self._slurm_failing_at

    def hand_over(self, occasion: Occasion | UserMail) -> None:
        """Queue an occasion for delivery. If the queue is full, only log it."""
        try:
            self._queue.put_nowait(occasion)
        except queue.Full:
            log.warning("notification dropped, %d others are queued: %s", MAX_QUEUED, occasion.text)

    def _deliver(self) -> None:
        while (occasion := self._queue.get()) is not None:
            if isinstance(occasion, UserMail):
                self._deliver_to_user(occasion)
                continue
            for channel, send in ways(self._site.config):
                try:
                    send(occasion)
                except Exception as error:  # noqa: BLE001 - a hook of the site's own
                    log.warning(
                        "notification failed way=%s event=%s error=%s",
                        channel,
                        occasion.event,
                        error,
                    )
                else:
                    log.info(
                        "notified way=%s event=%s text=%s", channel, occasion.event, occasion.text
                    )

    def _deliver_to_user(self, mail: UserMail) -> None:
        try:
            send_mail(self._site.config, (mail.address,), mail.subject, mail.text)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("no mail to a user key=%s error=%s", mail.key, error)
        else:
            log.info("mailed to a user key=%s address=%s", mail.key, mail.address)


def all_occasions(site: Site, slurm_failing_s: float = 0.0) -> Iterator[Occasion]:
    """Yield the occasions that exist now. ``slurm_failing_s``: for how long Slurm has failed."""
    ledger, now = site.ledger, site.now()
    yield from of_slurm(ledger.health.all(), slurm_failing_s)
    yield from of_records(ledger.condition, now)
    yield from of_other_head(ledger.owner.other_head())
    config = apply_directives(site.config, ledger, now)
    for name, spent in read_spending(config, ledger, now).items():
        budget = config.budget_of(name)
        yield from of_budget(f"cloud {name}" if name else "cluster", budget, spent, now)
    for scope, spent in read_payer_spending(config, ledger, now).items():
        payer_budget = config.policies.payer_budgets[scope]
        yield from of_budget(scope_in_words(scope), payer_budget, spent, now)
    yield from of_rate(config, site.usage())
    yield from of_breakers(ledger.exclusions.breakers(), now)
    yield from of_denials(ledger.exclusions.cool_downs(now))
    yield from of_health(ledger.health.all())
    yield from of_credentials(ledger.health.all(), now)
    yield from of_moves(moves_of_a_day(site))


def moves_of_a_day(site: Site) -> Sequence[Migration]:
    """The moves of the last day, and the ends without a notice; none if slurm-elastic-ckptman has
    no records.
    """
    since = site.now() - DAY_S
    with (
        contextlib.suppress(sqlite3.Error, OSError, SlurmElasticError),
        contextlib.closing(CheckpointState(site.config.state / FILE, read_only=True)) as state,
    ):
        moves = state.migrations(since=since)
        return (*moves, *unannounced_ends(site.ledger, since, moves))
    return ()


def ways(config: Config) -> Iterator[tuple[str, Callable[[Occasion], None]]]:
    """Yield the configured channels: name and function."""
    notify = config.notify
    if notify.mail:
        yield "mail", lambda occasion: _mail(config, occasion)
    if notify.webhook:
        yield "webhook", lambda occasion: _post(notify, config.cluster.name, occasion)
    if notify.command:
        yield "command", lambda occasion: _run(notify, config.cluster.name, occasion)


def _mail(config: Config, occasion: Occasion) -> None:
    subject = f"slurm-elastic {config.cluster.name}: {occasion.event}"
    text = f"{occasion.text}\n\nslurm-elastic status and explain say more.\n"
    send_mail(config, config.notify.mail, subject, text)


def send_mail(config: Config, addresses: Sequence[str], subject: str, text: str) -> None:
    """Call the mail program as slurmctld does: ``MailProg -s SUBJECT ADDRESS``, with the text on
    standard input. OSError, CalledProcessError or TimeoutExpired if it fails.
    """
    _call([mail_program(config), "-s", subject, *addresses], text, {})


def mail_program(config: Config) -> str:
    """The program that sends our mails: of the configuration, else MailProg of slurm.conf."""
    if config.notify.mail_program:
        return config.notify.mail_program
    try:
        return next(iter(siteconf.read(config.slurm.conf).items("MailProg")), MAIL)
    except ConfigError:
        return MAIL


class _FollowNothing(urllib.request.HTTPRedirectHandler):
    """Makes a redirection an error. urllib would follow it with a GET, without our document."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_FollowNothing)


def _post(notify: Notify, cluster: str, occasion: Occasion) -> None:
    request = urllib.request.Request(  # noqa: S310 - http and https, by address_of's check
        address_of(str(notify.webhook)),
        data=document(cluster, occasion),
        headers={"Content-Type": "application/json", "User-Agent": "slurm-elastic"},
        method="POST",
    )
    try:
        with _OPENER.open(request, timeout=DELIVERY_TIMEOUT_S):
            pass
    except (InvalidURL, UnicodeError):
        # These errors quote the address, whose path or password is a secret. Users read the log.
        raise ConfigError(_UNUSABLE) from None


def address_of(webhook: str) -> str:
    """The webhook's address. If ``webhook`` is a path, each call reads the address from the file.
    ConfigError if the file or the address cannot be used. The error contains no text of the file,
    because anybody who knows the address can write to the site's channel.
    """
    if not webhook.startswith("/"):
        return _without_user(webhook)
    if flaw := trust.flaw(webhook, trust.ours(), private=True):
        raise ConfigError(f"notify.webhook: {flaw}")
    with open(webhook, encoding="utf-8", errors="replace") as file:
        address = file.readline(_MAX_ADDRESS_LENGTH).strip()
    if not re.fullmatch(r"https?://[^\s/]\S*", address):
        expected = "found no http://... or https://... in its first line"
        raise ConfigError(f"notify.webhook: {webhook}: {expected}")
    return _without_user(address)


def _without_user(address: str) -> str:
    # urllib takes a user and a password for a part of the host's name, and asks DNS for them.
    try:
        host = urlsplit(address).netloc
    except ValueError:
        # Not chained: the error quotes the address, which may have a secret.
        raise ConfigError(_UNUSABLE) from None
    if "@" in host:
        raise ConfigError(_UNUSABLE)
    return address


def _run(notify: Notify, cluster: str, occasion: Occasion) -> None:
    """Run the site's command, with the values as environment variables and as JSON on standard
    input. No shell interprets them.
    """
    environment = {
        "SLURM_ELASTIC_CLUSTER": cluster,
        "SLURM_ELASTIC_EVENT": str(occasion.event),
        "SLURM_ELASTIC_TEXT": occasion.text,
    }
    environment |= {f"SLURM_ELASTIC_{name.upper()}": str(v) for name, v in occasion.values.items()}
    _call(list(notify.command), document(cluster, occasion).decode(), environment)


def document(cluster: str, occasion: Occasion) -> bytes:
    """The JSON document for webhooks and commands."""
    body = {
        "version": 1, "cluster": cluster, "event": str(occasion.event), "key": occasion.key,
        "text": occasion.text, "values": dict(occasion.values),
    }  # fmt: skip
    return msgspec.json.encode(body)


def _call(command: list[str], text: str, environment: dict[str, str]) -> None:
    """Run a command. OSError, CalledProcessError or TimeoutExpired if it fails."""
    # An environment variable cannot contain a NUL byte.
    clean = {name: value.replace("\0", "") for name, value in environment.items()}
    subprocess.run(
        command,
        input=text.encode(),
        env={"PATH": PATH, "LC_ALL": "C.UTF-8", **clean},
        cwd=os.sep,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=DELIVERY_TIMEOUT_S,
        check=True,
    )
