"""Sites drawn from the whole configuration, as far as fakes on a virtual clock can drive it."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import parse_duration
from slurm_elastic.config import Config, PoolSettings, Timings
from slurm_elastic.config.clouds import CloudSettings, typed
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import CloudPolicies, PoolPolicies, SitePolicies
from slurm_elastic.config.sections.requirements import Requirements, Shape, lacks
from slurm_elastic.model.boot_image import Replacement
from slurm_elastic.model.cluster import Limits, Market
from tests.chaos.coverage import keys_set
from tests.drawn.pairwise import together
from tests.drawn.site_document import (
    DEFINITIONS,
    Key,
    Step,
    draw_keys,
    keys_in,
    objects,
    read_values,
)

BASE = Path(__file__).parents[1] / "drawn" / "two_clouds.yaml"
FREE_STEPS = 6
"""Steps of a drawing, at most, that set any key."""
DRAWN_SHARE = 0.2
SPOT_USE_SHARE = 0.4
TRIES = 8
"""Steps after which a key, or a pair of keys, that never came counts as impossible."""
COUNTED = 1000
"""Seeds in a row whose drawn sites are numbered together."""
MOST_NODES, MOST_OF_POOL = 12, 4
LEFT_OUT = {
    "BlcrSettings": "BLCR saves by ssh",
    "CopySettings": "rsync and ssh copy the files of jobs",
    "Disk": "machines of the fake cloud have none",
    "HaSettings": "the run itself makes two heads",
    "ImageChoice": "the fake cloud has no images",
    "Join": "machines join over networks, ssh and user data",
    "MachineOptions": "the fake cloud has no such options",
    "Notify": "programs and web servers are told",
    "OtherCluster": "other heads are asked",
    "PriceSettings": "prices of EC2, or of a file",
}
"""Definitions whose objects a run on the virtual clock cannot drive, with the reason."""
NOT_DRIVEN = {
    Key("CheckpointSettings", "directory"): "a path of the machine",
    Key("Cluster", "name"): "the run's clouds have it",
    Key("Cluster", "uuid"): "the run's clouds have it",
    Key("Config", "state_dir"): "the run's own disk, which fails",
    Key("FakeCloud", "data"): "rsync and ssh copy the files of jobs",
    Key("NoticeSettings", "directory"): "a path of the machine",
    Key("NoticeSettings", "queue_cloud"): "a queue of AWS",
    Key("NoticeSettings", "queue_url"): "a queue of AWS",
    Key("PoolSettings", "devices"): "paths of the machine",
    Key("Reservation", "commit"): "of AWS",
    Key("Reservation", "families"): "of AWS",
    Key("Reservation", "id"): "of AWS",
    Key("Reservation", "kind"): "of AWS",
    Key("SlurmSettings", "bin_dir"): "a path of the machine",
    Key("SlurmSettings", "client"): "the run's own Slurm answers",
    Key("SlurmSettings", "conf"): "a path of the machine",
    Key("SlurmSettings", "programs_dir"): "a path of the machine",
    Key("SlurmSettings", "sbin_dir"): "a path of the machine",
    Key("SlurmSettings", "user"): "a Unix account",
    Key("Users", "socket"): "a socket of real threads",
}
"""Keys of other definitions that it cannot drive, with the reason."""
SHORTEST = {
    "resume_timeout": 60.0, "suspend_timeout": 5.0, "suspend_time": 20.0, "orphan_timeout": 20.0,
    "reconcile_interval": 10.0, "daemon_timeout": 60.0, "poll_interval": 5.0,
    "max_poll_interval": 5.0, "api_timeout": 10.0, "max_age": 120.0,
}  # fmt: skip
"""Seconds: with less no machine boots within its time, or a run looks far more often than the clock
of a run moves.
"""
LONGEST = 7200.0
"""Seconds: a longer wait than this would not end within a run."""
PATIENT = ("max_age", "interruption_loss", "history", "interval")
"""Times that nobody waits for."""


def drawn_config(seed: int, kept: Collection[int] | None = None) -> Config:
    """The configuration of that seed. ``kept``: apply only these steps of its drawing."""
    return read_values(drawn_document(seed, kept))


def drawn_document(seed: int, kept: Collection[int] | None = None) -> dict[str, Any]:
    chosen = [s for n, s in enumerate(steps(seed)) if kept is None or n in kept]
    base = _reserved() if random.Random(f"{seed} reserved").random() < 0.3 else _base()
    base = _with_spot_use(base, random.Random(f"{seed} spot use"))
    return draw_keys(base, chosen, driven_keys(), _may)


def is_drawn(seed: int) -> bool:
    """Whether that seed's site is drawn from the schema. By a chance of its own: the others are what
    they were.
    """
    return random.Random(f"{seed} drawn").random() < DRAWN_SHARE


def number_of(seed: int) -> int:
    """The drawing's number among all: sites drawn after each other have numbers in a row. By the
    seed alone, so that each seed's site is the same in whichever run.
    """
    part, place = divmod(seed, COUNTED)
    return int(part * COUNTED * DRAWN_SHARE) + sum(_drawn_before(part)[:place])


@functools.lru_cache(maxsize=2)
def _drawn_before(part: int) -> Sequence[bool]:
    return [is_drawn(seed) for seed in range(part * COUNTED, (part + 1) * COUNTED)]


def steps(seed: int) -> Sequence[Step]:
    """The steps of that seed's drawing: the keys that its number has, so that each pair of keys is
    drawn together soon, and a few of any others.
    """
    rng = random.Random(f"{seed} site")
    optional, count = _optional_keys(), len(driven_keys())
    keys = [optional[n] for n in together(len(optional), number_of(seed))]
    keys += [rng.randrange(count) for _ in range(rng.randint(0, FREE_STEPS))]
    rng.shuffle(keys)
    return [Step(rng.randrange(1 << 16), key, rng.randrange(1 << 16)) for key in keys]


@functools.cache
def _optional_keys() -> Sequence[int]:
    """The indices of the optional ones of ``driven_keys``."""
    return [n for n, key in enumerate(driven_keys()) if is_optional(key)]


@functools.cache
def _base() -> dict[str, Any]:
    plain: dict[str, Any] = yaml.safe_load(BASE.read_text())
    return plain


@functools.cache
def _base_keys() -> frozenset[Key]:
    return frozenset(keys_in(_base()))


def _reserved() -> dict[str, Any]:
    """The site with capacity that is paid in advance."""
    site = copy.deepcopy(_base())
    held = {"name": "held", "type": "small", "count": 2, "price": 0.8}
    site["clouds"][1]["reservations"] = [{**held, "from": "2026-01-01", "to": "2028-01-01"}]
    site["pools"][1]["markets"] = ["reserved", "spot", "on-demand"]
    return site


def _with_spot_use(site: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The site, often with nodes that never have spot machines, or with accounts whose jobs with
    --no-requeue may lose one. By steps alone these two keys seldom have a value that matters.
    """
    site = copy.deepcopy(site)
    if rng.random() < SPOT_USE_SHARE:
        site["pools"][1]["on_demand_nodes"] = rng.choice((1, 1, 2))
    if rng.random() < SPOT_USE_SHARE:
        allow = rng.choice((site, site["clouds"][1]))["allow"]
        allow["no_requeue_on_spot"] = [rng.choice(("all", "biology", "physics"))]
    return site


@functools.cache
def driven_keys() -> Sequence[Key]:
    """The keys that drawings may set."""
    keys = [k for k in _reached() if k not in NOT_DRIVEN and LEFT_OUT.keys().isdisjoint(_of(k))]
    return sorted(keys)


def may_meet(first: str, second: str) -> bool:
    """Whether a file can have both keys, each (as OBJECT.KEY) with another value than its default: by
    the files that have one of them.
    """
    for one, other in ((first, second), (second, first)):
        for number, document in enumerate(_files_with(one)):
            both = _with_key(document, other, number)
            if {first, second} <= keys_set(read_values(both)):
                return True
    return False


@functools.cache
def _files_with(name: str) -> Sequence[dict[str, Any]]:
    """A few files that have the key; none if it has no value that a run can drive."""
    drawn = (_with_key(base, name, n) for base in (_base(), _reserved()) for n in range(TRIES))
    return [file for file in drawn if name in keys_set(read_values(file))][: TRIES // 2]


def _with_key(document: dict[str, Any], name: str, number: int) -> dict[str, Any]:
    """The file after one more step that sets the key, if one can."""
    keys, rng = driven_keys(), random.Random(f"{name} {number}")
    index = [f"{key.of}.{key.name}" for key in keys].index(name)
    step = Step(rng.randrange(1 << 16), index, rng.randrange(1 << 16))
    return draw_keys(document, [step], keys, _may)


def is_optional(key: Key) -> bool:
    return key.name not in DEFINITIONS[key.of].get("required", ())


def _of(key: Key) -> set[str]:
    """The definitions of the key's objects."""
    rule = str(DEFINITIONS[key.of]["properties"][key.name])
    return {of for of in DEFINITIONS if f"/{of}'" in rule}


def _reached() -> Iterator[Key]:
    """The keys of all objects that a file of ours may have."""
    reached, left = set[str](), ["Config"]
    while left:
        of = left.pop()
        if of in reached or of in LEFT_OUT or _is_of_another_provider(of):
            continue
        reached.add(of)
        properties = DEFINITIONS[of].get("properties", {})
        yield from (Key(of, name) for name in properties)
        left += [d for d in DEFINITIONS if f"/{d}'" in str(properties)]
        left += ["FakeCloud"] if of == "Config" else []


def _is_of_another_provider(of: str) -> bool:
    return "provider" in DEFINITIONS[of].get("properties", {}) and of != "FakeCloud"


def _may(document: dict[str, Any]) -> bool:
    """Whether a run can drive the file: by its definitions, its keys, and values that name files or
    services of a machine.
    """
    if any(of in LEFT_OUT or _is_of_another_provider(of) for of, _ in objects(document)):
        return False
    if any(key in NOT_DRIVEN and key not in _base_keys() for key in keys_in(document)):
        return False
    if document.get("cluster") != _base()["cluster"]:
        return False
    here = list(objects(document))
    if any(_names_a_place(value) for _, values in here for value in values.values()):
        return False
    return _is_small(document) and all(_is_timely(k, v) for _, o in here for k, v in o.items())


def _names_a_place(value: object) -> bool:
    """Whether the value has a path or an URL."""
    if isinstance(value, list):
        return any(map(_names_a_place, value))
    return isinstance(value, str) and (value.startswith("/") or "://" in value)


def _is_small(document: dict[str, Any]) -> bool:
    try:
        sizes = [len(expand(pool["nodes"])) for pool in document["pools"]]
        idle = [
            (pool.get("policies") or {}).get("min_idle_machines", 0) for pool in document["pools"]
        ]
        return sum(sizes) <= MOST_NODES and max(sizes) <= MOST_OF_POOL and max(idle) <= 2
    except (AttributeError, KeyError, TypeError, ValueError):
        return True  # the reader's to refuse


def _is_timely(name: str, value: object) -> bool:
    if name not in SHORTEST and not name.endswith(("_cooldown", "_interval", "_timeout")):
        return True
    try:
        seconds = float(value) if isinstance(value, int | float) else parse_duration(str(value))
    except ValueError:
        return True
    return SHORTEST.get(name, 0.0) <= seconds and (name in PATIENT or seconds <= LONGEST)


def spot_nodes(pool: PoolSettings) -> Sequence[str]:
    """The nodes that may have spot machines."""
    names = expand(pool.nodes)
    return names[: len(names) - pool.on_demand_nodes] if Market.SPOT in pool.markets else ()


def is_sold(config: Config, pool: PoolSettings) -> bool:
    """Whether the pool's cloud has a type for its nodes."""
    shape = Shape(cpus=pool.cpus, memory=pool.slurm_memory, gres=pool.gres)
    asked = pool.instance_types if isinstance(pool.instance_types, Requirements) else Requirements()
    shapes = config.cloud(pool.cloud).shapes.items()
    types = [
        typed(name, of) for name, of in shapes if name in pool.type_names or not pool.type_names
    ]
    return any(not lacks(one, asked, shape) for one in types)


def calm(config: Config, timings: Timings) -> Config:
    """The site once nothing is to keep a job waiting or a machine idle: no bound, window, budget or
    policy, and these times.
    """
    clouds = tuple(_calm_cloud(cloud) for cloud in config.clouds)
    pools = tuple(
        replace(
            pool, policies=PoolPolicies(), max_nodes=None, max_price=None, max_booting=None,
            max_unavailable=None, replace=Replacement.BY_HAND,
            markets=(*(m for m in pool.markets if m is not Market.ON_DEMAND), Market.ON_DEMAND),
        )
        for pool in config.pools
    )  # fmt: skip
    return replace(
        config, clouds=clouds, pools=pools, limits=Limits(), allow=Who(accounts=("physics",)),
        policies=SitePolicies(poll_interval=10.0), timings=timings,
        checkpoint=replace(config.checkpoint, poll_interval=10.0),
    )  # fmt: skip


def _calm_cloud(cloud: CloudSettings) -> CloudSettings:
    return replace(
        cloud, limits=Limits(dollars_per_hour=1e6), policies=CloudPolicies(), allow=None,
        max_booting=None, suspend_time=None, resume_timeout=None, suspend_timeout=None,
    )  # fmt: skip
