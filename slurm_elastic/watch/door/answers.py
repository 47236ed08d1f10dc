"""The answers at the read door, from the files and the rights of the user who asks.

Facts are read at most every FACTS_TTL_S seconds, for all users together. Each answer is then
filtered for its user (``visibility``). We ask Slurm for the owners of jobs only if PrivateData
hides some.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.processes.bounded_process import run_bounded
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.config import Config
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.habits import Habits
from slurm_elastic.policies.waits.situation import NODES
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.hooks import order_file
from slurm_elastic.watch.door.orders import carry_out, may_order, name_of, no_right
from slurm_elastic.watch.door.own_jobs import (
    SlurmReading,
    narrowed,
    read_own_jobs,
    slurm_reading,
    subject_of,
)
from slurm_elastic.watch.door.pricing import (
    Moment,
    habits_now,
    prices_of,
    seen_now,
    sound_ask,
)
from slurm_elastic.watch.door.questions import (
    MAX_ANSWER,
    Ask,
    ChainAsk,
    CostAsk,
    DayAsk,
    DirectAsk,
    DoorAnswer,
    EndAsk,
    Order,
    OwnJobsAsk,
    PriceAsk,
    SaveAsk,
    TermsAsk,
    group_ids,
    trusted,
    understood,
)
from slurm_elastic.watch.door.records import read_chain, read_costs, read_day, read_days, read_facts
from slurm_elastic.watch.door.saves import SaveLimit, Saver, save_now
from slurm_elastic.watch.door.visibility import (
    HIDING,
    JOBS,
    Viewer,
    day_seen,
    own_ask,
    public_facts,
    refusal,
    seen_chain,
    seen_facts,
    seen_terms,
)
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.view.day import DaySpan, DayView

log = logging.getLogger(__name__)

FACTS_TTL_S = 2.0  # seconds for which one reading is used; longer if reading takes long (SHARE)
SHARE = 10.0  # a reading is used for at least this many times its own duration
STALE = 60.0
SETTINGS_FRESH = 60.0
DAY_FRESH = 30.0
QUEUE_FRESH, HABITS_FRESH = 10.0, 900.0
"""Seconds for which forecasts use one reading of the queue, and of the run times of jobs."""
USERS_SPAN = 92 * 86400.0
"""Users may ask for costs of this last time (s): a whole year takes long to compute."""
_JOB_NUMBER = re.compile(r"[0-9]{1,10}")

T = TypeVar("T")


class Refreshed(Generic[T]):
    """A value, read again ``fresh`` seconds after the last reading, or later if that took long."""

    def __init__(self, read: Callable[[], T], fresh: float) -> None:
        self._read, self._fresh = read, fresh
        self._cache = TtlCache[None, T]()

    def get(self) -> T:
        return self._cache.get(None, self._read, ttl_s=self._ttl_s)

    def _ttl_s(self, took_s: float) -> float:
        return took_s + max(self._fresh, min(SHARE * took_s, STALE))

    def last(self) -> T | None:
        """The last value, for callers that must not block; None before the first reading."""
        return self._cache.last(None)

    def forget(self) -> None:
        """Drop the value, because it has changed; the next ``get`` reads it again."""
        self._cache.forget()


class DoorAnswers:
    """Answers questions. Thread-safe, because each lane of the door has its own thread."""

    def __init__(self, config: Config, slurm: Slurm, now: Callable[[], float]) -> None:
        self._config, self._slurm, self._now = config, slurm, now
        self._trusted = trusted(config)
        self._facts: Refreshed[Facts] = Refreshed(lambda: read_facts(config, now()), FACTS_TTL_S)
        self._whole: Refreshed[bytes] = Refreshed(
            lambda: msgspec.json.encode(DoorAnswer(facts=self._facts.get())), FACTS_TTL_S
        )
        self._public: Refreshed[bytes] = Refreshed(
            lambda: msgspec.json.encode(DoorAnswer(facts=public_facts(self._facts.get()))),
            FACTS_TTL_S,
        )
        self._hidden: Refreshed[frozenset[str]] = Refreshed(self._read_hidden, SETTINGS_FRESH)
        self._day = Refreshed(lambda: (now(), read_day(config, now())), DAY_FRESH)
        self._save_limit = SaveLimit(now)
        self._live_jobs: Refreshed[Sequence[SlurmJob]] = Refreshed(slurm.jobs, FACTS_TTL_S)
        users = config.users
        self._operators: Refreshed[frozenset[int]] = Refreshed(
            lambda: group_ids("operators", users.operators), SETTINGS_FRESH
        )
        self._viewers: Refreshed[frozenset[int]] = Refreshed(
            lambda: group_ids("viewers", users.viewers), SETTINGS_FRESH
        )
        self._habits: Refreshed[Habits] = Refreshed(lambda: habits_now(slurm), HABITS_FRESH)
        self._seen: Refreshed[Moment] = Refreshed(
            lambda: seen_now(config, slurm, now(), self._habits.get()), QUEUE_FRESH
        )
        self._jobs: Refreshed[Sequence[SlurmJob]] = Refreshed(self._read_jobs, FACTS_TTL_S)
        self._ended_too: Refreshed[Sequence[SlurmJob]] = Refreshed(
            lambda: slurm.jobs(ended=True), FACTS_TTL_S
        )
        self._queue: Refreshed[SlurmReading] = Refreshed(
            lambda: slurm_reading(config, slurm, now(), self._habits.get()), QUEUE_FRESH
        )

    def __call__(self, peer: Peer, line: bytes) -> bytes:
        """The answer to one line of a request; an error is an answer, too."""
        try:
            document = self._document(peer, understood(line))
        except SlurmElasticError as error:
            return refused(str(error))
        if len(document) > MAX_ANSWER:
            return refused("the answer is too long for the read door: ask as root or SlurmUser")
        return document

    def _document(self, peer: Peer, ask: Ask) -> bytes:
        if isinstance(ask, DirectAsk | EndAsk | SaveAsk):
            return self._saved(peer, ask) if isinstance(ask, SaveAsk) else self._directed(peer, ask)
        viewer = self._viewer(peer)
        if isinstance(ask, ChainAsk):
            return self._chain(ask, viewer)
        if isinstance(ask, CostAsk):
            uid, now = None, self._now()
            if viewer is not None:
                uid, ask = viewer.uid, replace(ask, since=max(ask.since, now - USERS_SPAN))
            return msgspec.json.encode(
                DoorAnswer(costs=run_bounded(read_costs, self._config, ask, now, uid))
            )
        if isinstance(ask, DayAsk):
            return msgspec.json.encode(DoorAnswer(day=self._seen_day(ask.span, viewer)))
        if isinstance(ask, PriceAsk):
            own_question = ask if viewer is None else own_ask(ask, viewer, name_of(viewer.uid))
            forecasts = run_bounded(
                prices_of, self._config, sound_ask(own_question), self._seen.get()
            )
            return msgspec.json.encode(DoorAnswer(prices=forecasts))
        if isinstance(ask, OwnJobsAsk):
            return self._own_jobs(ask, peer, viewer)
        if isinstance(ask, TermsAsk):
            return msgspec.json.encode(DoorAnswer(terms=self._terms(viewer)))
        return self._seen_facts(viewer)

    def _seen_facts(self, viewer: Viewer | None) -> bytes:
        if viewer is None:
            return self._whole.get()
        if not viewer.hidden:
            return self._public.get()
        return msgspec.json.encode(DoorAnswer(facts=seen_facts(self._facts.get(), viewer)))

    def _seen_day(self, span: DaySpan, viewer: Viewer | None) -> DayView:
        """A day's rows are cached for DAY_FRESH seconds, rows of longer spans are not."""
        if span is not DaySpan.DAY:
            return run_bounded(read_days, self._config, self._now(), span, viewer)
        now, rows = self._day.get()
        return day_seen(*rows, now, span, viewer)

    def _own_jobs(self, ask: OwnJobsAsk, peer: Peer, viewer: Viewer | None) -> bytes:
        subject = subject_of(ask, peer.uid, name_of(peer.uid), viewer)
        facts = self._facts.get() if viewer is None else seen_facts(self._facts.get(), viewer)
        slurm, facts = narrowed(self._newest_queue(), facts, subject)
        own_jobs = run_bounded(read_own_jobs, self._config, ask, subject, slurm, facts)
        return msgspec.json.encode(DoorAnswer(own_jobs=own_jobs))

    def _newest_queue(self) -> SlurmReading:
        """The reading of Slurm with the jobs of at most FACTS_TTL_S seconds ago.

        Only forecasts use an older queue: users who just submitted a job would believe it lost if
        it were not listed.
        """
        reading = self._queue.get()
        if reading.error:
            return reading
        try:
            return replace(reading, jobs=self._ended_too.get())
        except SlurmError as error:
            return SlurmReading(error=str(error))

    def _terms(self, viewer: Viewer | None) -> str:
        published = order_file.read(self._config.state / order_file.FILE, self._now())
        if published is None:
            return ""
        table = published.table if viewer is None else seen_terms(published.table, viewer)
        return order_file.text_of(table, published.ranking, published.at)

    def _chain(self, ask: ChainAsk, viewer: Viewer | None) -> bytes:
        if ask.about == "job" and not _JOB_NUMBER.fullmatch(ask.name):
            raise SlurmElasticError(f"{ask.name[:40]!r} is not the number of a job")
        reason = refusal(ask, viewer) if viewer else ""
        if reason:
            raise SlurmElasticError(reason)
        chain = read_chain(self._config, ask, self._now())
        return msgspec.json.encode(DoorAnswer(chain=seen_chain(chain, viewer) if viewer else chain))

    def _directed(self, peer: Peer, ask: Order) -> bytes:
        if not self._is_operator(peer):
            raise SlurmElasticError(no_right(self._config))
        lines = carry_out(self._config, ask, name_of(peer.uid), self._now())
        # Keep this order: between the two calls another thread could make the whole document from
        # the old facts.
        self._facts.forget()
        self._whole.forget()
        self._public.forget()
        return msgspec.json.encode(DoorAnswer(lines=lines))

    def _saved(self, peer: Peer, ask: SaveAsk) -> bytes:
        is_trusted = peer.uid in self._trusted
        saver = Saver(uid=peer.uid, name=name_of(peer.uid), is_trusted=is_trusted)
        lines = save_now(
            self._config, self._live_jobs.get(), ask.job, saver, self._now(), self._save_limit
        )
        return msgspec.json.encode(DoorAnswer(lines=lines))

    def trusts(self, peer: Peer) -> bool:
        """Whether the peer is an operator, as far as known without looking up groups (may hang)."""
        return may_order(
            peer.uid, peer.groups, self._trusted, lambda: self._operators.last() or frozenset()
        )

    def _is_operator(self, peer: Peer) -> bool:
        return may_order(peer.uid, peer.groups, self._trusted, self._operators.get)

    def _viewer(self, peer: Peer) -> Viewer | None:
        """The user's restricted view; None for users who see everything."""
        if self._is_operator(peer) or not peer.groups.isdisjoint(self._viewers.get()):
            return None
        hidden = self._hidden.get()
        jobs = self._jobs.get() if not hidden.isdisjoint((JOBS, NODES)) else ()
        return Viewer.of(peer.uid, hidden, jobs)

    def _read_hidden(self) -> frozenset[str]:
        """The words of PrivateData that hide parts of our answers; all such words if slurm.conf
        cannot be read.
        """
        try:
            site = read_site(self._config.slurm)
        except ConfigError as error:
            log.warning("PrivateData is unknown, users see only their own jobs: %s", error)
            return HIDING
        return frozenset(word.lower() for word in site.items("PrivateData")) & HIDING

    def _read_jobs(self) -> Sequence[SlurmJob]:
        """All jobs with their owners; none if Slurm does not answer."""
        try:
            return self._slurm.jobs(ended=True)
        except SlurmError as error:
            log.warning("owners of jobs are unknown, users see no jobs: %s", error)
            return ()


def refused(sentence: str) -> bytes:
    """The answer with an error; unprintable characters that it quotes are replaced."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in sentence)
    return msgspec.json.encode(DoorAnswer(error=shown))
