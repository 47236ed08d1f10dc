"""The questions at the door, and its answers: one line of JSON, then one document::

{"ask": "facts"}                                             -> {"facts": {...}}
{"ask": "chain", "about": "job", "name": "7", ...}           -> {"chain": {...}}
{"ask": "cost", "by": "account", "since": 1800000000}        -> {"costs": {...}}
{"ask": "day"}                                               -> {"day": {...}}
{"ask": "price", "job": {"id": 0, "partitions": ["aws"]}}     -> {"prices": [...]}
{"ask": "terms"}                                              -> {"terms": "..."}
{"ask": "mine", "since": 1800000000}                         -> {"own_jobs": {...}}
{"ask": "save", "job": 7}                                    -> {"lines": [...]}
{"ask": "direct", "word": {"kind": "pause", ...}, ...}       -> {"lines": [...]}
{"ask": "end", "numbers": [3]}                               -> {"lines": [...]}
                                                                {"error": SENTENCE}

The last two are for operators.
"""

from __future__ import annotations

import contextlib
import grp
import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base import account
from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config
from slurm_elastic.features.money.books import Costs
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.directive import Departure, Word
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.waits.situation import Obstacles
from slurm_elastic.state.ledger import Decision, Machine
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.view.day import DaySpan, DayView
from slurm_elastic.watch.view.own_jobs import OwnJobs

log = logging.getLogger(__name__)

MAX_ANSWER = 64 << 20  # bytes; thirty thousand machines take half of that
KNOWN_JOBS = 20  # with fewer ended jobs of the site, a forecast is a guess


class FactsAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="facts"):
    """All facts that ``status`` and ``ckpt list`` show, except Slurm's own."""


class ChainAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="chain"):
    """The decisions about a job (by its number), a node or a pool.

    For a job the client adds Slurm's facts: its last ``nodes``, from ``begin`` until ``end`` (Unix
    time; None: it still has them).
    """

    about: Literal["job", "node", "pool"]
    name: str
    nodes: tuple[str, ...] = ()
    begin: float = 0.0
    end: float | None = None


class CostAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="cost"):
    """Asks for the costs from ``since`` until ``until`` (Unix time; None: now)."""

    by: By
    since: float
    until: float | None = None
    share_unused: bool = False


class DayAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="day"):
    """The last hours or days of machines and jobs."""

    span: DaySpan = DaySpan.DAY


class PriceAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="price"):
    """When ``job``, not submitted yet, would start in each of its partitions, and its cost.

    ``save``: duration of a checkpoint (s). ``limits``: by partition, the time limit (s) of a job
    that names none.
    """

    job: SlurmJob
    save: float = 60.0
    limits: Mapping[str, int] = {}


class TermsAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="terms"):
    """Asks for the published terms of all pools. The answer is the text of their file
    (``slurm/hooks/order_file.py``), or "" if the terms are absent or too old.
    """


class PartitionPrice(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={
        "why": "reason",
        "start": "start_s",
        "run": "run_s",
        "by_limits": "by_limits_s",
        "limit": "limit_s",
    },
):
    """A forecast for one partition and one of its pools ("": the site's own machines).

    ``nodes``: the number of nodes that the job takes. ``why``: why the job cannot start there, or
    "". ``start``, ``run``: seconds until the start, and of the run, at 10, 50 and 90 % of all
    simulated futures. ``by_limits``: the start if all jobs ran up to their limits. ``low``: dollars
    for the usual run at the cheapest price (of ``market``). ``high``: dollars for the whole limit
    at the dearest price (None: unknown). ``chance``: probability that spot machines are taken away
    during the usual run. ``saves_seconds``, ``saves_dollars``: the expected savings by
    checkpoints. ``jobs_known``: number of ended jobs that the forecast uses. ``limit``: the job's
    time limit there (s; None: no limit).
    """

    partition: str
    pool: str = ""
    nodes: int = 1
    why: str = ""
    start: tuple[int, ...] = ()
    by_limits: int | None = None
    run: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None
    market: str = ""
    public: bool = False
    chance: float | None = None
    saves_seconds: float | None = None
    saves_dollars: float | None = None
    jobs_known: int = 0
    limit: int | None = None


class OwnJobsAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="mine"):
    """The jobs of the user who asks; for users who may see all jobs also of another ``user``, or
    (``everyone``) of all users.

    Jobs that ended before ``since`` (Unix time) are left out. ``job``: only this job.
    """

    since: float
    user: str = ""
    everyone: bool = False
    job: int | None = None


class SaveAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="save"):
    """Save a job now. Users may ask it for their own jobs."""

    job: int


class DirectAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="direct"):
    """An order from ``starts`` (Unix time; None: now) for ``seconds`` (None: until ended)."""

    word: Word
    starts: float | None = None
    seconds: float | None = None
    reason: str = ""


def packed(ask: Order) -> Order:
    """The order as it is sent: a cloud may have more nodes than a request has bytes for."""
    if not isinstance(ask, DirectAsk) or not isinstance(ask.word, Departure) or not ask.word.nodes:
        return ask
    return replace(ask, word=replace(ask.word, nodes=(compress(ask.word.nodes),)))


def unpacked(word: Word) -> Word:
    """The order with the name of each node. HostlistError if a text is no hostlist."""
    if not isinstance(word, Departure) or not word.nodes:
        return word
    # Together, so that many texts name no more nodes than one may.
    return replace(word, nodes=tuple(expand(",".join(word.nodes))))


class EndAsk(Struct, frozen=True, kw_only=True, tag_field="ask", tag="end"):
    """End the directives with these numbers."""

    numbers: tuple[int, ...]
    reason: str = ""


Order = DirectAsk | EndAsk
Ask = (
    FactsAsk | ChainAsk | CostAsk | DayAsk | PriceAsk | TermsAsk | OwnJobsAsk | SaveAsk
    | DirectAsk | EndAsk
)  # fmt: skip


class Lane(StrEnum):
    """The queue in which a question waits for its answer; lanes do not wait for each other."""

    QUICK = "quick"  # cached facts and refusals; with PrivateData we ask Slurm, too
    ORDERS = "orders"  # from users who are known to be trusted, without a look-up of groups
    RECORDS = "records"
    APART = "apart"  # long work, in a process of its own


_LANES = {
    CostAsk: Lane.APART, PriceAsk: Lane.APART, OwnJobsAsk: Lane.APART,
    ChainAsk: Lane.RECORDS, DayAsk: Lane.RECORDS, SaveAsk: Lane.RECORDS,
}  # fmt: skip


def understood(line: bytes) -> Ask:
    """Decode the question in one line. SlurmElasticError if it is not valid."""
    try:
        ask: Ask = msgspec.json.decode(line, type=Ask)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SlurmElasticError(f"this release does not know this request: {error}") from error
    return ask


def lane_of(line: bytes, *, trusted: bool) -> Lane:
    """The lane for a question; ``trusted``: whether its user is known to be trusted."""
    with contextlib.suppress(SlurmElasticError):
        ask = understood(line)
        if isinstance(ask, Order) and trusted:
            return Lane.ORDERS
        if isinstance(ask, DayAsk) and ask.span is not DaySpan.DAY:
            return Lane.APART
        return _LANES.get(type(ask), Lane.QUICK)
    return Lane.QUICK


class Chain(Struct, frozen=True, kw_only=True):
    """Decisions, ordered by time, and the machines that they are about.

    ``obstacles``: why jobs get no machine now. ``labels``: by job number, the name of a job that is
    called something else, such as ``17_2``. ``private`` is as in ``Facts``.
    """

    decisions: tuple[Decision, ...] = ()
    machines: tuple[Machine, ...] = ()
    obstacles: Obstacles = Obstacles()
    private: tuple[str, ...] = ()
    labels: Mapping[int, str] = {}


class DoorAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one field is set. ``lines``: what an order did, for a person."""

    error: str = ""
    lines: tuple[str, ...] | None = None
    facts: Facts | None = None
    chain: Chain | None = None
    costs: Costs | None = None
    day: DayView | None = None
    prices: tuple[PartitionPrice, ...] | None = None
    terms: str | None = None
    own_jobs: OwnJobs | None = None


def trusted(config: Config) -> frozenset[int]:
    """The uids of root and SlurmUser."""
    return account.trusted(config.slurm.user)


def group_ids(key: str, names: Sequence[str]) -> frozenset[int]:
    """The ids of the groups that ``users.KEY`` names, as far as this host knows them."""
    ids = set()
    for name in names:
        try:
            ids.add(grp.getgrnam(name).gr_gid)
        except KeyError:
            log.warning("users.%s: this host has no group %s", key, name)
    return frozenset(ids)
