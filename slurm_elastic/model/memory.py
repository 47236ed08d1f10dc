"""The ledger's memory, as values: frozen, without I/O. ``ledger`` makes rows of them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from slurm_elastic.base.backoff import Backoff
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
"""How many of its launch's jobs a machine's row repeats: a launch of thousands of machines may be
for as many jobs, and each machine with all of them would make rows by the square.
"""


_UNHELPED_PAUSE = Backoff(first_s=2 * 3600.0, longest_s=24 * 3600.0)


class Launch(Struct, frozen=True, kw_only=True):
    """A launch row. ``offer`` is what was asked, or any of ``alternatives``. ``accounts``: by node,
    who pays it; ``owner``: see LaunchSpec; ``recipe``: what its machines were made of
    (protocols.Stops), "" where nobody asked.
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

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All that its machines may come from."""
        return (self.offer, *self.alternatives)


class Machine(Struct, frozen=True, kw_only=True):
    """An instance row: the instance as last seen and what we know beyond the cloud.

    ``life`` is its state by our decisions (``model.machine_states``), as ``instance.state`` is its
    state in the cloud. ``misses`` counts consecutive reads of the cloud without it.
    ``jobs`` are the first MACHINE_JOBS of those its launch was for (the launch has them all).
    ``worst_price`` ($/h) is the highest this machine may come to: on-demand where its offer had
    such a price (0 for an adopted machine whose launch is not known: take ``instance.price``).
    ``accounts`` pay it, each so many parts; empty: none does.

    A machine that was stopped and started has a row for each part of its life, the earlier ones
    under ids of their own (``part_id``), each at its own price. ``born`` is when it was first
    launched, where that was an earlier part. If it was to be stopped ``tunnel_key`` is the public
    key by which it reached the head (the ledger's Tunnel), as its own disk has that still.
    """

    instance: Instance
    pool: str
    life: MachineState = BOOTING
    jobs: tuple[int, ...] = ()
    last_seen: float = 0.0
    misses: int = 0
    worst_price: float = 0.0
    accounts: dict[str, int] = field(default_factory=dict)
    born: float | None = None
    tunnel_key: str | None = None

    @property
    def boots(self) -> bool:
        """Whether it is wanted and has not registered yet."""
        return isinstance(self.life, Booting)

    @property
    def is_wanted(self) -> bool:
        """Whether it boots or serves: neither its end nor its stop is decided."""
        return isinstance(self.life, Booting | Serving)

    @property
    def is_stopping(self) -> bool:
        """Whether it is to be stopped, and not known to be yet."""
        return isinstance(self.life, Stopping)

    @property
    def is_off(self) -> bool:
        """Whether it is stopped in this part of its life, or was until the part ended."""
        life = self.life.before if isinstance(self.life, Ended) else self.life
        return isinstance(life, Stopped)

    @property
    def has_ended(self) -> bool:
        """Whether this part of its life is over and no longer paid."""
        return isinstance(self.life, Lost | Ended)

    @property
    def registered_at(self) -> float | None:
        """When its node was first seen up."""
        return self.life.registered_at

    @property
    def retired_at(self) -> float | None:
        """When its end or its stop was decided."""
        return self.life.retired_at

    @property
    def ended_at(self) -> float | None:
        """When it was known to be gone, or the next part of its life began."""
        return self.life.ended_at

    @property
    def cause(self) -> AnyCause | None:
        """Why it ends, is stopped, or has ended."""
        return self.life.cause

    @property
    def why(self) -> str:
        """The cause of its end for people, "" while it serves."""
        return str(self.cause) if self.cause is not None else ""

    @property
    def lease(self) -> Lease:
        """The lease of this machine."""
        i = self.instance
        return Lease(instance=i.id, node=i.node, start=i.launched, end=self.ended_at, price=i.price)


PART = "@"
"""Between a machine's id and the number of an earlier part of its life."""


def part_id(instance: str, number: int) -> str:
    """The id under which an earlier part of a machine's life is kept."""
    return f"{instance}{PART}{number}"


def whole_id(part: str) -> str:
    """The machine's own id, of that or of an earlier part of its life."""
    machine, _, number = part.rpartition(PART)
    return machine if machine and number.isdecimal() else part


class Deferral(Struct, frozen=True, kw_only=True):
    """A job that is kept from public clouds, as its ``account`` is over its budget. The values that
    it had before: ``partitions`` (empty: they were not changed) and the time that it was to
    ``begin`` (0: none). ``until`` is the begin that we gave it (0: none).
    """

    job: int
    account: str
    partitions: tuple[str, ...] = ()
    begin: float = 0.0
    until: float = 0.0


class Decision(Struct, frozen=True, kw_only=True):
    """One entry of the decision chain that ``explain`` prints. ``subjects``: node names and
    ``job:ID``; ``detail`` is free-form (ranked and rejected offers, errors).
    """

    at: float
    correlation: str
    kind: str
    subjects: tuple[str, ...]
    cause: AnyCause
    detail: dict[str, object] | None = None

    @property
    def reason(self) -> str:
        """The cause for people."""
        return str(self.cause)


_PLAIN_NAMES = {"plans of Slurm": "Slurm's reservations and drains", "slurm (ckptman)": "slurm"}
"""For people; the ledger keeps these under other names."""
REFUSED, UNREADABLE = "auth", "unreadable"
"""The codes of a cloud that refuses the credentials, and of one that gives no other list."""


class Health(Struct, frozen=True, kw_only=True):
    """How a cloud (or ``slurm``) last answered; ``error`` is None when it did."""

    name: str
    checked: float
    error: str | None = None
    code: str | None = None

    @property
    def told(self) -> str:
        """The error with the name of who met it, which many errors begin with already."""
        own = f"{self.name}: "
        name = _PLAIN_NAMES.get(self.name, self.name)
        return f"{name}: {(self.error or '').removeprefix(own)}"


class Run(Struct, frozen=True, kw_only=True):
    """One run of a job on nodes of ours, from ``begin`` to ``end`` (None: it runs). ``shares``: a
    hostlist, and how many millionths the job has of each of its nodes
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
    """A span in which a node with a machine took no jobs (``end`` None: it still does not)."""

    node: str
    begin: float
    end: float | None = None


class Tunnel(Struct, frozen=True, kw_only=True):
    """The end of a tunnel that a machine has: the one of that launch for that node. ``address`` is
    its own in the tunnel, ``key`` its public key, ``since`` when that was believed.
    """

    generation: str
    node: str
    address: str
    key: str
    since: float


def generation_order(generation: str) -> float:
    """The launch's place among the requests of slurmctld's programs: it came after those that bear
    this time or an earlier one, though the head's clock may have been set back since.
    """
    _, _, tail = generation.partition("-")
    digits = tail.partition("-")[2]
    return (
        int(digits) / 1000 if digits.isascii() and digits.isdigit() else generation_time(generation)
    )


def decided_at(one: Instance) -> float:
    """When its launch was decided by the head's clock, else when its cloud says that it began."""
    return generation_time(one.generation) or one.launched


def generation_time(generation: str) -> float:
    """When the launch was decided, by the head's clock (a cloud's may differ); 0 if unreadable."""
    digits = generation[1:14]
    good = generation.startswith("g") and digits.isascii() and digits.isdigit()
    return int(digits) / 1000 if good else 0.0


class Purchase(Struct, frozen=True, kw_only=True):
    """Machines that a growth policy started ``at`` then, ``first_node`` and others, for ``jobs``:
    by number what each asked for. ``open`` nodes are not judged yet, ``came_up`` are those of them
    that were seen idle, with the first time, and ``unused`` ones were given back or stood idle for
    long.
    """

    first_node: str
    at: float
    open: frozenset[str]
    came_up: Mapping[str, float] = {}
    unused: frozenset[str] = frozenset()
    jobs: Mapping[int, str] = {}


class UnhelpedJob(Struct, frozen=True, kw_only=True):
    """A job that growth policies do not count from ``since`` on, for a pause, because
    ``nodes`` were started in vain for its wishes (``asks``). ``reason`` is Slurm's at that time;
    ``strikes`` in a row.
    """

    job: int
    asks: str
    since: float
    nodes: tuple[str, ...] = ()
    reason: str = ""
    strikes: int = 1

    @property
    def until(self) -> float:
        """When the job counts again: a wrong verdict must not keep it for ever."""
        return self.since + _UNHELPED_PAUSE.after(self.strikes)
