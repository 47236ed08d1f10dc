"""The ledger's rows of decisions with their causes, and of messages that people were sent."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from slurm_elastic.base.age import known_age_s
from slurm_elastic.model.causes import decoded, encoded
from slurm_elastic.model.job_holds import HOLDING, JobHold
from slurm_elastic.model.memory import Decision
from slurm_elastic.model.requeued_jobs import WAITS_SINCE, RequeuedJob
from slurm_elastic.state.ledger.retention import RECORD_TIME
from slurm_elastic.state.store.store import Store
from slurm_elastic.state.store.view import to_json

USER_KEY = "user/"
DECISION_COLUMNS = "at, correlation, kind, subjects, cause, detail"
MONTHLY = "month/"
"""The begin of the keys of monthly messages. We keep these longer than other messages, and they do
not count in the limit per hour.
"""
_OVER = "over/"
"""The begin of a second key of a message whose trouble is over."""
_IS_MONTHLY = f"substr(key, 1, {len(MONTHLY)}) = '{MONTHLY}'"
MONTHLY_KEPT_S = 100 * 86400.0
MAX_READ_FOR_REQUEUES = 10_000
"""We search only so many of the last decisions for requeues. This takes some milliseconds."""


class Decisions:
    """The decisions and their subjects. Each method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record(self, *decisions: Decision) -> None:
        """Write decisions for ``explain``, all in one transaction (one sync of the disk)."""
        with self._store.transaction(None):
            rows = [
                (
                    id_, d.at, d.correlation, d.kind, to_json(d.subjects), encoded(d.cause),
                    None if d.detail is None else to_json(d.detail),
                )
                # Ids derive from the journal's line: a rebuilt view must have the same ones.
                for id_, d in enumerate(decisions, self._store.first_id())
            ]  # fmt: skip
            self._store.insert("insert into decisions", f"id, {DECISION_COLUMNS}", rows)

    def about(self, subject: str, limit: int = 200) -> tuple[Decision, ...]:
        """The last ``limit`` decisions about a node or ``job:ID``, oldest first."""
        rows = self._store.select(
            "select d.* from decision_subjects s join decisions d on d.id = s.decision "
            "where s.subject = ? order by d.at desc, d.id desc limit ?",
            subject,
            limit,
        )
        return tuple(decision_from(row) for row in reversed(rows))

    def requeued(self) -> dict[int, RequeuedJob]:
        """The last requeue of each job whose nodes got no machine."""
        rows = self._store.select(
            "select substr(s.value, 5) as job, d.at, json_extract(d.detail, ?) as since "
            "from decisions d, json_each(d.subjects) s "
            "where d.id >= (select min(id) from "
            "(select id from decisions order by id desc limit ?)) "
            "and d.kind = 'requeued' and since is not null and s.value like 'job:%' "
            "order by d.id",
            f"$.{WAITS_SINCE}",
            MAX_READ_FOR_REQUEUES,
        )
        return {
            int(r["job"]): RequeuedJob(requeued_at=r["at"], waits_since=r["since"]) for r in rows
        }

    def job_holds(self) -> dict[int, JobHold]:
        """The last decision about each job with which slurm-elasticd may have held it."""
        marks = ", ".join("?" * len(HOLDING))
        rows = self._store.select(
            "select substr(s.value, 5) as job, d.at, d.cause from decisions d, "
            "json_each(d.subjects) s where d.id >= (select min(id) from "
            "(select id from decisions order by id desc limit ?)) "
            f"and d.kind in ({marks}) and s.value like 'job:%' order by d.id",
            MAX_READ_FOR_REQUEUES,
            *HOLDING,
        )
        return {int(r["job"]): JobHold(at=r["at"], cause=decoded(r["cause"])) for r in rows}

    def last(self, limit: int) -> tuple[Decision, ...]:
        """The last ``limit`` decisions of all, oldest first."""
        rows = self._store.select("select * from decisions order by id desc limit ?", limit)
        return tuple(decision_from(row) for row in reversed(rows))

    def claim_messages(
        self,
        keys: Sequence[str],
        now: float,
        repeat_after_s: float,
        max_messages: int,
        span_s: float,
        *,
        over: Collection[str] = (),
        return_after_s: float = math.inf,
        summed: Collection[str] = (),
        room: int | None = None,
    ) -> list[str]:
        """Return the keys whose messages may be sent now, and record them as sent. Left out are
        keys that were sent in the last ``repeat_after_s`` seconds, and keys beyond ``max_messages``
        in ``span_s`` seconds of their kind, which is the first word of a key (``lost/17``).

        ``over``: keys whose trouble is proven to be over. If it comes back, it is new trouble, and
        is sent again ``return_after_s`` seconds after its last message. ``summed``: kinds of which
        one call sends one message about all its keys. ``room``: return at most so many keys, the
        first ones. The other keys can be claimed later.
        """
        with self._store.transaction(None) as db:
            # Rows of both spans are kept: one limits repetitions, the other all messages together.
            ages = self._known_ages(db, now, max(repeat_after_s, span_s))
            ended = {key.removeprefix(_OVER) for key in ages if key.startswith(_OVER)}
            newly_ended = [key for key in over if key in ages and key not in ended]
            ended.update(newly_ended)
            new_keys = [
                key
                for key in dict.fromkeys(keys)
                if ages.get(key, math.inf) >= (return_after_s if key in ended else repeat_after_s)
            ]
            sent = {key: age for key, age in ages.items() if age < span_s}
            new_keys = _within_bound(new_keys, sent, max_messages, summed)[:room]
            # As old as the message, so that both rows are deleted together.
            rows = [(f"{_OVER}{key}", now - ages[key]) for key in newly_ended]
            rows += [(key, now) for key in new_keys]
            self._store.insert("insert or replace into told", "key, at", rows)
            for key in ended.intersection(new_keys):
                self._store.change("delete from told where key = ?", f"{_OVER}{key}")
        return new_keys

    def _known_ages(self, db: sqlite3.Connection, now: float, kept_s: float) -> dict[str, float]:
        """The seconds since each message, without monthly messages. Older rows are deleted, and so
        are rows of the future: they were written before the clock was set back, and would silence
        their messages, and by the bound all others, until that time comes.
        """
        ages: dict[str, float] = {}
        rows = db.execute(f"select key, at from told where not {_IS_MONTHLY}").fetchall()
        for key, sent_at in rows:
            age_s = known_age_s(sent_at, now, kept_s)
            if age_s is None:
                self._store.change("delete from told where key = ?", key)
            else:
                ages[key] = age_s
        return ages

    def claim_monthly(self, keys: Sequence[str], now: float, max_messages: int) -> list[str]:
        """Return at most ``max_messages`` of the keys that were never claimed, and record them as
        sent. Each key begins with MONTHLY and contains its month.
        """
        with self._store.transaction(None) as db:
            # By the record's own time: with a clock far ahead all messages of this month would be
            # sent again. It is null before the first one, and nothing is deleted then.
            self._store.change(
                "delete from told where at < min(?, (select at from settled where what = ?)) - ? "
                f"and {_IS_MONTHLY}",
                now,
                RECORD_TIME,
                MONTHLY_KEPT_S,
            )
            claimed = {key for (key,) in db.execute(f"select key from told where {_IS_MONTHLY}")}
            new_keys = [key for key in dict.fromkeys(keys) if key not in claimed][:max_messages]
            self._store.insert(
                "insert or replace into told", "key, at", [(key, now) for key in new_keys]
            )
        return new_keys


def _kind_of(key: str) -> str:
    return key.partition("/")[0]


def _within_bound(
    new_keys: Sequence[str], sent: Mapping[str, float], max_messages: int, summed: Collection[str]
) -> list[str]:
    """Return the first of ``new_keys`` for which their kinds have room. ``sent``: the age of each
    message of the span, by key.
    """
    used: Counter[str] = Counter()
    # The keys of one summary have the same age.
    messages = {
        (_kind_of(key), age if _kind_of(key) in summed else key) for key, age in sent.items()
    }
    used.update(kind for kind, _ in messages)
    kept: list[str] = []
    for key in new_keys:
        kind = _kind_of(key)
        if used[kind] >= max_messages:
            continue
        kept.append(key)
        used[kind] += kind not in summed
    return kept


def decision_from(row: sqlite3.Row) -> Decision:
    """A decision row as a value; ``detail`` consists of plain JSON values."""
    detail = row["detail"]
    return Decision(
        at=row["at"],
        correlation=row["correlation"],
        kind=row["kind"],
        subjects=msgspec.json.decode(row["subjects"], type=tuple[str, ...]),
        cause=decoded(row["cause"]),
        detail=None if detail is None else msgspec.json.decode(detail, type=dict[str, object]),
    )
