from array import array
from collections.abc import Sequence
from typing import Any

SOURCES: int

def easy_starts(
    submit: array[int],
    run: array[int],
    limit: array[int],
    sizes: array[int],
    nodes: int,
    start: array[int],
    /,
) -> None: ...
def allot(
    share: type[object],
    needs: Sequence[Sequence[int]],
    clouds: Sequence[Sequence[object]],
    bounds: Sequence[object],
    may_start: Sequence[bool] | None = None,
    /,
) -> list[Any]: ...
def leased(batch: array[int], end: array[int], count: array[int], starts: array[int], /) -> int: ...
def longest_queue(submit: array[int], starts: array[int], /) -> int: ...
def machines_needed(
    procs: array[int],
    memory: array[int],
    gpus: array[int],
    nodes: array[int],
    of_procs: int,
    of_memory: int,
    of_gpus: int,
    never: int,
    needs: array[int],
    /,
) -> None: ...
def overfull(
    sizes: array[int], starts: array[int], ends: array[int], machines: int, /
) -> tuple[int, int] | None: ...
def peak(leases: list[tuple[array[int], array[int], array[int], array[int]]], /) -> int: ...
def replayed(
    sizes: array[int], starts: array[int], run: array[int], ended: array[int], /
) -> tuple[int, int]: ...
def settle(
    batch: array[int],
    end: array[int],
    count: array[int],
    reclaimed: array[int],
    starts: array[int],
    offers: array[int],
    prices: array[float],
    on_spot: array[int],
    increment: int,
    minimum: int,
    refund: bool,
    /,
) -> tuple[int, float, float]: ...
def slowdown(submit: array[int], ended: array[int], run: array[int], least: int, /) -> float: ...
def waits(
    submit: array[int], first: array[int], ended: array[int], waits: array[int], /
) -> int: ...
def work(
    run: array[int], where: array[int], ended: array[int], needs: list[array[int]], /
) -> int: ...

class Decision:
    offer: int
    left: int
    until: int
    stock: int

class Seen:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...
    def drop(self) -> None: ...
    def tobytes(self) -> bytes: ...

class Pool:
    idle: int
    busy: int
    booting: int
    held: int
    draining: int
    promised: int
    launched: int
    released: int
    launches: int
    releases: int
    reclaimed: int
    busy_area: int
    up_area: int
    spot_area: int
    spot_live: int
    overlap: int
    machines: int
    standing: int
    max_machines: int
    lease: int
    grid: int
    after: int
    order: int
    sinces: int
    flagged: int
    pays_boots: int
    must_yield: int
    has_turns: int
    max_booting: int
    is_public: int
    spot_offers: int
    sharing: int
    by_user: int
    number: int

    def connect(
        self,
        live_of: array[int],
        on_spot: array[int],
        needs: array[int],
        decision: Decision,
        cores: int,
        memory: int,
        gpus: int,
        /,
    ) -> None: ...
    def watch_losses(
        self,
        falls: array[int],
        same_from: array[int],
        same_to: array[int],
        watched: array[int],
        /,
    ) -> None: ...
    def column(self, name: str, /) -> Seen: ...
    def entries(self) -> list[tuple[int, int, int]]: ...
    def idle_of(self, batch: int, /) -> int: ...
    def release_idle(self, limit: int, now: int, /) -> int: ...
    def waste(self, sales: list[tuple[int, int]], now: int, /) -> None: ...

class Core:
    direct: int
    depth: int
    reuse: int
    period: int
    watches: int
    free_of_bounds: int
    patience: int
    counts_boots: int
    requeue_delay: int
    unlimited: int
    guarded: int
    unhelped: int
    ordered: int
    starts_unasked: int
    now: int
    postponed: int
    last_ready: int
    running: int
    held: int
    useful: int
    lost: int
    interruptions: int
    full: int
    stale: int
    shadow: int
    head: int
    waiting_count: int
    policy: int
    group: int
    slots: int
    wait_limit: int
    size: int
    short_s: int
    most_machines: int
    most_booting: int
    begun_count: int
    work_per_machine: float
    most_work: float
    least_work: float

    def grow_by(self, covered: bytearray, begun: bytearray, /) -> None: ...
    def connect(self, pools: Sequence[Pool], columns: list[array[int]], /) -> None: ...
    def run(self, site: object, begin: int, /) -> tuple[int, list[int]]: ...
    def close(self) -> None: ...
    def waiting(self) -> list[int]: ...
    def schedule(self, now: int, /) -> None: ...
    def look_again(self, now: int, /) -> None: ...
    def boot_ahead(self, pool: int, count: int, now: int, least: int, /) -> None: ...
    def plan_look(self, when: int, /) -> None: ...
    def look_at(self, when: int, number: int, /) -> None: ...
    def earliest(self, pool: int, need: int, now: int, /) -> tuple[int, int]: ...
    def add_order(self, pools: list[int], /) -> int: ...
