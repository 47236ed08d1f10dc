"""The ledger's records as values, frozen and without I/O. ``state.ledger`` stores them as rows."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from slurm_elastic.base.age import known_age_s
from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import AuthError, ProviderError, UnopenedError
from slurm_elastic.base.sentence import Sentence
from slurm_elastic.base.units import brief
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.cluster import Instance, Lease, Offer
from slurm_elastic.model.launch_states import INTENDED, LaunchState
from slurm_elastic.model.machine_states import (
    BOOTING,
    Booting,
    Ended,
    Lost,
    MachineState,
    Serving,
    Stopped,
    Stopping,
)

MACHINE_JOBS = 20
"""A machine's row repeats at most this many jobs of its launch. A launch may have thousands of
machines and thousands of jobs; all jobs in each row would make the ledger grow with the square.
"""


_UNHELPED_PAUSE = Backoff(first_s=2 * 3600.0, longest_s=24 * 3600.0)


class PurchaseTerms(Struct, frozen=True, kw_only=True):
    """The keys of the configuration for a machine's price, as they were at its purchase. Bills are
    computed from it, so a later change of the configuration changes no bill of the past.

    ``billing_increment_s``: how many seconds its cloud bills at a time. ``disk_price``: the part of
    its prices for its disks ($/h), which no reservation covers. ``on_demand_price``: its price on
    demand ($/h), with disks; None if the configuration had none for its type. ``list_price``: the
    same before discounts; None if no discount counted.
    """

    billing_increment_s: int = 1
    disk_price: float = 0.0
    on_demand_price: float | None = None
    list_price: float | None = None


UNKNOWN_TERMS = PurchaseTerms()
"""The terms of a machine of a cloud or pool that the configuration lacks: billed by the second."""


class Launch(Struct, frozen=True, kw_only=True):
    """A launch row. The launch asked for ``offer`` or any of ``alternatives``. ``created``: Unix
    time. ``accounts``: by node, its payers and their parts. ``owner``, ``least``: see
    LaunchSpec. ``recipe``: the recipe of its machines (protocols.Stops), "" if it was not
    requested. ``terms``: of the purchase, by instance type, as the configuration had them when the
    launch was decided.
    """

    generation: str
    request: str
    pool: str
    cloud: str
    nodes: tuple[str, ...]
    jobs: tuple[int, ...]
    offer: Offer
    created: float
    state: LaunchState = INTENDED
    alternatives: tuple[Offer, ...] = ()
    accounts: dict[str, dict[str, int]] = field(default_factory=dict)
    owner: dict[str, str] = field(default_factory=dict)
    recipe: str = ""
    least: int = 1
    terms: dict[str, PurchaseTerms] = field(default_factory=dict)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All offers that its machines may come from."""
        return (self.offer, *self.alternatives)


class Machine(Struct, frozen=True, kw_only=True):
    """A machine row: the instance as last seen, and our own facts about it.

    ``life``: its state by our decisions (``model.machine_states``), while ``instance.state`` is its
    state in the cloud. ``missed_listings``: consecutive listings of the cloud without it. ``jobs``:
    the first MACHINE_JOBS jobs of its launch (the launch has all). ``worst_price``: the highest
    price ($/h) that it may reach; on-demand if its offer had such a price; 0 for an adopted machine
    whose launch is not known (use ``instance.price``). ``accounts``: its payers and their parts;
    empty if nobody pays it from a budget. ``last_seen``, ``first_launched_at``: Unix time.

    A machine that was stopped and started has a row for each part of its life, each at its own
    price. The earlier parts have ids of their own (``part_id``). ``first_launched_at``: when it was
    first launched, if that was in an earlier part. ``tunnel_key``: the public key of its tunnel to
    the head, set when its stop is decided, because the key stays on its disk. ``terms``: of its
    purchase, or of its last start.
    """

    instance: Instance
    pool: str
    life: MachineState = BOOTING
    jobs: tuple[int, ...] = ()
    last_seen: float = 0.0
    missed_listings: int = 0
    worst_price: float = 0.0
    accounts: dict[str, int] = field(default_factory=dict)
    first_launched_at: float | None = None
    tunnel_key: str | None = None
    terms: PurchaseTerms = UNKNOWN_TERMS

    @property
    def boots(self) -> bool:
        """Whether the machine boots: it is wanted, and its node has not registered yet."""
        return isinstance(self.life, Booting)

    @property
    def is_wanted(self) -> bool:
        """Whether the machine boots or serves: neither its end nor its stop is decided."""
        return isinstance(self.life, Booting | Serving)

    @property
    def is_stopping(self) -> bool:
        """Whether the machine's stop is decided and not confirmed yet."""
        return isinstance(self.life, Stopping)

    @property
    def is_off(self) -> bool:
        """Whether the machine is stopped, or was stopped at the end of this part of its life."""
        life = self.life.before if isinstance(self.life, Ended) else self.life
        return isinstance(life, Stopped)

    @property
    def has_ended(self) -> bool:
        """Whether this part of the machine's life is over and no longer paid."""
        return isinstance(self.life, Lost | Ended)

    @property
    def registered_at(self) -> float | None:
        """When the machine's node was first seen up; None if it was not."""
        return self.life.registered_at

    @property
    def retired_at(self) -> float | None:
        """When the machine's end or stop was decided; None if neither was."""
        return self.life.retired_at

    @property
    def ended_at(self) -> float | None:
        """When we learned of the machine's end, or when the next part of its life began. None if
        neither has happened.
        """
        return self.life.ended_at

    @property
    def cause(self) -> AnyCause | None:
        """Why the machine ends, is stopped, or has ended."""
        return self.life.cause

    @property
    def cause_text(self) -> Sentence | None:
        """The cause of the machine's end or stop, for people. None if there is none, or if it is
        not known.
        """
        return self.cause.sentence if self.cause is not None and str(self.cause) else None

    @property
    def lease(self) -> Lease:
        """The lease of this machine."""
        i = self.instance
        return Lease(
            instance=i.id, node=i.node, start=i.launched, end=self.ended_at, price=i.price,
            increment_s=self.terms.billing_increment_s,
        )  # fmt: skip


PART = "@"
"""Separates a machine's id from the number of an earlier part of its life."""


def part_id(instance: str, number: int) -> str:
    """The id of the row of an earlier part of a machine's life."""
    return f"{instance}{PART}{number}"


def whole_id(machine_or_part: str) -> str:
    """The machine's id, from its id or from the id of an earlier part of its life."""
    machine, _, number = machine_or_part.rpartition(PART)
    return machine if machine and number.isdecimal() else machine_or_part


class Decision(Struct, frozen=True, kw_only=True):
    """One entry of the decisions that ``explain`` prints. ``at``: Unix time. ``subjects``: node
    names and ``job:ID``. ``detail``: any data (ranked and rejected offers, errors).
    """

    at: float
    correlation: str
    kind: str
    subjects: tuple[str, ...]
    cause: AnyCause
    detail: dict[str, object] | None = None

    @property
    def reason(self) -> Sentence:
        """The cause for people."""
        return self.cause.sentence


PLANS, PLANS_EVERY_S = "plans of Slurm", 60.0
"""The entry for what Slurm plans for nodes, such as a maintenance reservation, and the seconds
after which it is read again at the latest.
"""
_PLAIN_NAMES = {PLANS: "Slurm's reservations and drains", "slurm (ckptman)": "slurm"}
"""The names for people of entries that have other names in the ledger."""
REFUSED, UNOPENED, UNREADABLE = "auth", "unopened", "unreadable"
"""REFUSED: the cloud refuses the credentials. UNOPENED: this host cannot open the cloud.
UNREADABLE: its list fails for another reason.
"""


def code_of(error: ProviderError) -> str:
    """The code of a cloud's health after this error."""
    if isinstance(error, UnopenedError):
        return UNOPENED
    return REFUSED if isinstance(error, AuthError) else UNREADABLE


class Health(Struct, frozen=True, kw_only=True):
    """The last answer of a cloud (or ``slurm``) at ``checked`` (Unix time). ``error``: None if it
    answered.
    """

    name: str
    checked: float
    error: str | None = None
    code: str | None = None

    @property
    def named_error(self) -> str:
        """The error with the name before it. Many errors already begin with the name."""
        return f"{_PLAIN_NAMES.get(self.name, self.name)}: {self.unnamed_error}"

    @property
    def unnamed_error(self) -> str:
        """The error without the name. Many errors begin with the name."""
        error_text = self.error or ""
        return error_text.removeprefix(f"{self.name}: ")

    def dated_error(self, age_s: float) -> str:
        """The text of ``named_error``, with its age, and with the time of the next try if we know
        it.
        """
        again = f", asked again within {brief(PLANS_EVERY_S)}" if self.name == PLANS else ""
        return f"{self.named_error} ({brief(age_s)} ago{again})"


class ChargedRun(Struct, frozen=True, kw_only=True):
    """One run of a job on nodes of ours, from ``begin`` to ``end`` (Unix time; None: it runs).
    ``shares``: pairs of a hostlist and the millionths of each of these nodes that the job has
    (``policies.money.cost_split``).
    """

    job: int
    begin: float
    end: float | None = None
    label: str = ""
    user: str = ""
    uid: int = -1
    account: str = ""
    partition: str = ""
    shares: tuple[tuple[str, int], ...] = ()


class Drained(Struct, frozen=True, kw_only=True):
    """A span (Unix time) in which a node with a machine took no jobs. ``end`` None: it has not
    ended.
    """

    node: str
    begin: float
    end: float | None = None


class Tunnel(Struct, frozen=True, kw_only=True):
    """The tunnel of the machine of launch ``generation`` for ``node``. ``address``: the machine's
    address in the tunnel. ``key``: its public key. ``since``: when the key was accepted (Unix
    time).
    """

    generation: str
    node: str
    address: str
    key: str
    since: float


def generation_order(generation: str) -> float:
    """The launch's position among the requests of slurmctld's programs: it came after all requests
    with this time or an earlier one. This holds even if the head's clock was set back.
    """
    _, _, tail = generation.partition("-")
    digits = tail.partition("-")[2]
    return (
        int(digits) / 1000 if digits.isascii() and digits.isdigit() else generation_time(generation)
    )


def decided_at(instance: Instance) -> float:
    """When the machine's launch was decided by the head's clock; if that is unknown, the launch
    time that its cloud reports (Unix time).
    """
    return generation_time(instance.generation) or instance.launched


def generation_time(generation: str) -> float:
    """When the launch was decided by the head's clock (Unix time). A cloud's clock may differ. 0 if
    the name has no time.
    """
    digits = generation[1:14]
    good = generation.startswith("g") and digits.isascii() and digits.isdigit()
    return int(digits) / 1000 if good else 0.0


class Purchase(Struct, frozen=True, kw_only=True):
    """The machines that a growth policy started ``at`` a time (Unix time), of which the first is
    for ``first_node``. ``jobs``: by job id, its request at that time. ``open``: nodes that are not
    judged yet. ``came_up``: the open nodes that were seen idle, each with the first such time.
    ``unused``: nodes that were given back unused or stood idle for long.
    """

    first_node: str
    at: float
    open: frozenset[str]
    came_up: Mapping[str, float] = {}
    unused: frozenset[str] = frozenset()
    jobs: Mapping[int, str] = {}


class UnhelpedJob(Struct, frozen=True, kw_only=True):
    """A job that growth policies do not count from ``since`` until ``until`` (Unix time), because
    ``nodes`` were started in vain for its request (``asks``). ``reason``: Slurm's reason at that
    time. ``strikes``: how often in a row; each lengthens the pause.
    """

    job: int
    asks: str
    since: float
    nodes: tuple[str, ...] = ()
    reason: str = ""
    strikes: int = 1

    @property
    def until(self) -> float:
        """When the job counts again (Unix time). There is always an end, because the verdict may be
        wrong.
        """
        return self.since + self._pause_s

    def is_paused(self, now: float) -> bool:
        """Whether the job does not count now. A pause that began in the future, because the clock
        was set back since, is over.
        """
        age_s = known_age_s(self.since, now, self._pause_s)
        return age_s is not None and age_s < self._pause_s

    @property
    def _pause_s(self) -> float:
        return _UNHELPED_PAUSE.after(self.strikes)
