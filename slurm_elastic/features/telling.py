"""Tells people of occasions: by mail, a webhook, a command. Nothing ever waits for it.

The ledger has all that was told, so that a restart does not tell it again. One thread of its own
delivers; what it cannot keep up with is dropped, with a line in the log.
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
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import msgspec

from slurm_elastic.base import trust
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.lasting import LastingThread
from slurm_elastic.config import Config
from slurm_elastic.config.telling import Notify
from slurm_elastic.controller.budget import apply_directives, read_payer_spending, read_spending
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.notify_occasions import (
    Occasion,
    of_breakers,
    of_budget,
    of_credentials,
    of_denials,
    of_health,
    of_moves,
    of_rate,
)
from slurm_elastic.model.directive import scope_in_words
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE

log = logging.getLogger(__name__)

PERIOD = 30.0
MOST = 20
"""Occasions of one hour at most; the rest waits."""
HOUR = 3600.0
DAY = 86400.0
WAITING = 100
PATIENCE = 30.0
"""Seconds that one delivery may take."""
_LONGEST = 4096
MAIL = "/usr/bin/mail"
PATH = "/usr/local/bin:/usr/bin:/bin"


def join(site: Site) -> Extensions | None:
    """Where somebody is to be told."""
    if not site.config.notify.anybody:
        return None
    return Extensions(parts=[("notify", lambda worker: Teller(site, worker))])


class Teller(Part):
    """``looks`` is the daemon's task; ``close`` forgets what is not delivered."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site, self._notify = site, site.config.notify
        self.looks = SiteTask(site, worker, self.look, "notify", period=PERIOD)
        self._queue: queue.Queue[Occasion | None] = queue.Queue(WAITING)
        self._thread = LastingThread("notify", self._deliver)
        self._thread.start()

    def close(self) -> None:
        """What waits is told as long as the process lives, and not waited for."""
        # Where it is full nobody hears this: the thread is a daemon, and ends with the process.
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)

    def look(self) -> None:
        """Hand over what is new."""
        site = self._site
        now = site.now()
        found = [one for one in all_occasions(site) if one.event in self._notify.events]
        # Written down before it is sent: rather not told than told for ever.
        for one in site.ledger.decisions.newly_told(
            [one.key for one in found], now, self._notify.again, MOST, HOUR
        ):
            self.hand_over(next(o for o in found if o.key == one))

    def hand_over(self, one: Occasion) -> None:
        """Have it told in its turn; where too many wait, it is in the log alone."""
        try:
            self._queue.put_nowait(one)
        except queue.Full:
            log.warning("not told, %d others wait: %s", WAITING, one.text)

    def _deliver(self) -> None:
        while (one := self._queue.get()) is not None:
            for way, send in ways(self._site.config):
                try:
                    send(one)
                except Exception as error:  # noqa: BLE001 - a hook of the site's own
                    log.warning("not told way=%s event=%s error=%s", way, one.event, error)
                else:
                    log.info("told way=%s event=%s text=%s", way, one.event, one.text)


def all_occasions(site: Site) -> Iterator[Occasion]:
    """As things are now."""
    ledger, now = site.ledger, site.now()
    config = apply_directives(site.config, ledger, now)
    for name, spent in read_spending(config, ledger, now).items():
        budget = config.cloud(name).policies.budget if name else config.policies.budget
        yield from of_budget(f"cloud {name}" if name else "cluster", budget, spent)
    for scope, spent in read_payer_spending(config, ledger, now).items():
        budget = config.policies.payer_budgets[scope]
        yield from of_budget(scope_in_words(scope), budget, spent)
    yield from of_rate(config, site.usage())
    yield from of_breakers(ledger.exclusions.breakers(), now)
    yield from of_denials(ledger.exclusions.cool_downs(now))
    yield from of_health(ledger.health.all())
    yield from of_credentials(ledger.health.all(), now)
    with (
        contextlib.suppress(sqlite3.Error, OSError, SlurmElasticError),
        contextlib.closing(CheckpointState(config.state / FILE, read_only=True)) as state,
    ):
        yield from of_moves(state.migrations(since=now - DAY))


def ways(config: Config) -> Iterator[tuple[str, Callable[[Occasion], None]]]:
    """How people are told."""
    notify = config.notify
    if notify.mail:
        yield "mail", lambda one: _mail(config, one)
    if notify.webhook:
        yield "webhook", lambda one: _post(notify, config.cluster.name, one)
    if notify.command:
        yield "command", lambda one: _run(notify, config.cluster.name, one)


def _mail(config: Config, one: Occasion) -> None:
    """As slurmctld calls it: ``MailProg -s SUBJECT ADDRESS``, the text on standard input."""
    program = config.notify.mail_program or _mail_program(config.slurm.conf)
    subject = f"slurm-elastic {config.cluster.name}: {one.event}"
    text = f"{one.text}\n\nslurm-elastic status and explain say more.\n"
    _call([program, "-s", subject, *config.notify.mail], text, {})


def _mail_program(conf: str) -> str:
    try:
        return next(iter(siteconf.read(conf).items("MailProg")), MAIL)
    except ConfigError:
        return MAIL


def _post(notify: Notify, cluster: str, one: Occasion) -> None:
    request = urllib.request.Request(  # noqa: S310 - http and https, by address_of's check
        address_of(str(notify.webhook)),
        data=document(cluster, one),
        headers={"Content-Type": "application/json", "User-Agent": "slurm-elastic"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=PATIENCE):  # noqa: S310
        pass


def address_of(webhook: str) -> str:
    """The address, read anew from its file if it is in one; ConfigError where that cannot be used.
    No word of the file is in the error: who knows the address can write to the site's channel.
    """
    if not webhook.startswith("/"):
        return webhook
    if wrong := trust.flaw(webhook, trust.ours(), private=True):
        raise ConfigError(f"notify.webhook: {wrong}")
    with open(webhook, encoding="utf-8", errors="replace") as file:
        address = file.readline(_LONGEST).strip()
    if not re.fullmatch(r"https?://[^\s/]\S*", address):
        expected = "found no http://... or https://... in its first line"
        raise ConfigError(f"notify.webhook: {webhook}: {expected}")
    return address


def _run(notify: Notify, cluster: str, one: Occasion) -> None:
    """Values as environment and as JSON on standard input; no shell sees them."""
    environment = {
        "SLURM_ELASTIC_CLUSTER": cluster,
        "SLURM_ELASTIC_EVENT": str(one.event),
        "SLURM_ELASTIC_TEXT": one.text,
    }
    environment |= {f"SLURM_ELASTIC_{name.upper()}": str(v) for name, v in one.values.items()}
    _call(list(notify.command), document(cluster, one).decode(), environment)


def document(cluster: str, one: Occasion) -> bytes:
    """The JSON that a webhook and a command get."""
    body = {
        "version": 1, "cluster": cluster, "event": str(one.event), "key": one.key,
        "text": one.text, "values": dict(one.values),
    }  # fmt: skip
    return msgspec.json.encode(body)


def _call(command: list[str], text: str, environment: dict[str, str]) -> None:
    """OSError or a CalledProcessError or TimeoutExpired where it fails."""
    clean = {name: value.replace("\0", "") for name, value in environment.items()}
    subprocess.run(
        command,
        input=text.encode(),
        env={"PATH": PATH, "LC_ALL": "C.UTF-8", **clean},
        cwd=os.sep,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
        check=True,
    )
