"""Whether the parts of a configuration fit each other: pools and clouds, limits, prices, times.

Pure; each check adds what it finds to the draft's problems. What merely keeps a public cloud from
being used (no allow list, no spending cap) is no mistake: see ``config.blocked_clouds``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from slurm_elastic.config import (
    Allocation,
    AnyCloud,
    AwsCloud,
    DockerCloud,
    FakeCloud,
    LocalCloud,
    OpenNebulaCloud,
    OpenStackCloud,
    PoolSettings,
    Strategy,
    effective_who,
)
from slurm_elastic.configdraft import Draft
from slurm_elastic.configshape import describe, nearest
from slurm_elastic.configyaml import KeyPath, shown
from slurm_elastic.model import Limits, Location, Market
from slurm_elastic.units import format_duration

LOCAL_ZONE = "local"
ONE_ZONE = "default"
"""The one zone of a cloud whose scheduler chooses by itself."""
NETWORK_WORDS = ("none", "auto")
"""nova's own, in the place of networks."""
_TYPED = AwsCloud | OpenNebulaCloud | OpenStackCloud | DockerCloud | FakeCloud
_NO_SPOT = OpenNebulaCloud | OpenStackCloud | DockerCloud
_MARGIN = 256  # MiB that PoolSettings.slurm_memory keeps back at least


def _locations(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        at = ("clouds", i, "location")
        if isinstance(cloud, LocalCloud) and cloud.location is not Location.ON_PREMISES:
            expected = f"{Location.ON_PREMISES}: provider local is this very host"
            draft.problems.add(at, shown(cloud.location), expected)
        # An endpoint of one's own may be EC2's protocol in the next room; amazon's never is.
        amazon = isinstance(cloud, AwsCloud) and cloud.endpoint is None
        if amazon and cloud.location is not Location.PUBLIC:
            expected = f"{Location.PUBLIC}: provider aws costs money unless it has an own endpoint"
            draft.problems.add(at, shown(cloud.location), expected)


def _aws(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, AwsCloud):
            continue
        at = ("clouds", i)
        if cloud.endpoint is not None and not cloud.endpoint.startswith(("http://", "https://")):
            expected = "a URL that starts with http:// or https://"
            draft.problems.add((*at, "endpoint"), shown(cloud.endpoint), expected)
        for key, zones in (("zones", cloud.zones), ("subnets", cloud.subnets)):
            for n, zone in enumerate(zones):
                place = (*at, key, n if key == "zones" else zone)
                if cloud.endpoint is None and not zone.startswith(cloud.region):
                    expected = f"a zone of region {cloud.region}, such as {cloud.region}a"
                    draft.problems.add(place, shown(zone), expected)
        for n, zone in enumerate(cloud.zones if cloud.subnets else ()):
            if zone not in cloud.subnets:
                expected = f"a zone with a subnet: one of {', '.join(cloud.subnets)}"
                draft.problems.add((*at, "zones", n), shown(zone), expected)


def _aws_launches(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, AwsCloud):
            continue
        at = ("clouds", i)
        if cloud.allocation is Allocation.RANK and cloud.strategy is not Strategy.FLEET:
            expected = "strategy fleet, too: there is nothing to choose among"
            draft.problems.add((*at, "allocation"), shown(str(cloud.allocation)), expected)
        template = cloud.launch_template
        if template is not None and not re.fullmatch(r"[A-Za-z0-9().\-/_]{3,128}", template):
            expected = "the id (lt-...) or the name of a launch template"
            draft.problems.add((*at, "launch_template"), shown(template), expected)
        for name in cloud.interruption_rates:
            if name not in cloud.types:
                expected = f"a type of the cloud: one of {', '.join(cloud.types)}"
                hint = nearest(name, cloud.types)
                place = (*at, "interruption_rates", name)
                draft.problems.add(place, shown(name), expected, hint)


def _aws_rates(draft: Draft) -> None:
    """EC2's limits are an account's in a region, whose clouds share them."""
    first: dict[tuple[str | None, ...], tuple[int, AwsCloud]] = {}
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, AwsCloud):
            continue
        place = (cloud.region, cloud.endpoint, cloud.profile)
        number, other = first.setdefault(place, (i, cloud))
        for key in ("launch_burst", "launch_rate"):
            mine, theirs = getattr(cloud, key), getattr(other, key)
            if mine != theirs:
                words = "no such key" if theirs is None else describe(theirs)
                expected = f"{words}, as in clouds[{number}] of the same account and region"
                draft.problems.add(("clouds", i, key), describe(mine), expected)


def _opennebula(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, OpenNebulaCloud):
            continue
        at = ("clouds", i)
        if not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", cloud.endpoint):
            expected = "the URL of oned, such as http://front-end:2633/RPC2, without a password"
            # What stands before an @ may be a password, which nobody wants to see again.
            found = "a user or password in it" if "@" in cloud.endpoint else shown(cloud.endpoint)
            draft.problems.add((*at, "endpoint"), found, expected)
        elif cloud.ca_file is not None and not cloud.endpoint.startswith("https://"):
            expected = "no ca_file: the endpoint is not https"
            draft.problems.add((*at, "ca_file"), shown(cloud.ca_file), expected)
        longest = cloud.resume_timeout or draft.timing("resume_timeout")
        if longest is not None and cloud.pending_limit >= longest:
            expected = f"less than {_time(longest)}, the resume_timeout of the cloud"
            draft.problems.add((*at, "pending_limit"), _time(cloud.pending_limit), expected)


def _openstack(draft: Draft) -> None:
    for i, cloud in draft.clouds.items():
        if not isinstance(cloud, OpenStackCloud):
            continue
        at = ("clouds", i)
        for key, text in (("cloud", cloud.cloud), ("image", cloud.image)):
            if not text.strip():
                draft.problems.add((*at, key), shown(text), "a name")
        for n, word in enumerate(cloud.networks):
            if word in NETWORK_WORDS and len(cloud.networks) > 1:
                draft.problems.add((*at, "networks", n), shown(word), "that word alone")
        longest = cloud.resume_timeout or draft.timing("resume_timeout")
        if longest is not None and cloud.schedule_wait >= longest:
            expected = f"less than {_time(longest)}, the resume_timeout of the cloud"
            draft.problems.add((*at, "schedule_wait"), _time(cloud.schedule_wait), expected)


def _type_prices(draft: Draft) -> None:
    """A machine of a public cloud that costs nothing would pass under any spending cap."""
    for i, cloud in draft.clouds.items():
        if cloud.location is not Location.PUBLIC or not isinstance(cloud, _TYPED):
            continue
        for name, kind in cloud.types.items():
            if kind.price <= 0:
                at = ("clouds", i, "types", name, "price")
                expected = "a price above 0: the spending cap of a public cloud counts with it"
                draft.problems.add(at, describe(kind.price), expected)


def _pool_size(draft: Draft) -> None:
    for i, pool in draft.pools.items():
        count = len(draft.nodes.get(i, ()))
        if count and pool.max_nodes is not None and pool.max_nodes > count:
            expected = f"at most {count}, the number of nodes of the pool"
            draft.problems.add(("pools", i, "max_nodes"), describe(pool.max_nodes), expected)
        if pool.real_memory is not None and pool.real_memory > pool.memory:
            expected = f"at most {pool.memory} MiB, the memory of the pool's machines"
            draft.problems.add(("pools", i, "real_memory"), f"{pool.real_memory} MiB", expected)
        if pool.real_memory is None and pool.memory <= _MARGIN:
            hint = f"{pool.memory}G"
            expected = f"more than {_MARGIN} MiB, which are kept back for kernel and firmware"
            draft.problems.add(("pools", i, "memory"), f"{pool.memory} MiB", expected, hint)


def _pool_market(draft: Draft) -> None:
    for i, pool, cloud in _pools_with_clouds(draft):
        for n, market in enumerate(pool.markets):
            if market in _markets_sold(cloud):
                continue
            sold = ", ".join(m for m in Market if m in _markets_sold(cloud))
            expected = f"a market of cloud {cloud.name}: one of {sold}"
            draft.problems.add(("pools", i, "markets", n), shown(market), expected)


def _markets_sold(cloud: AnyCloud) -> frozenset[Market]:
    amazon = isinstance(cloud, AwsCloud) and cloud.endpoint is None
    if amazon or (isinstance(cloud, AwsCloud) and cloud.location is Location.PUBLIC):
        return frozenset({Market.SPOT, Market.ON_DEMAND})
    if isinstance(cloud, _NO_SPOT) and cloud.location is Location.PUBLIC:
        return frozenset({Market.ON_DEMAND})
    if isinstance(cloud, LocalCloud) or cloud.location is Location.ON_PREMISES:
        return frozenset({Market.RESERVED, Market.ON_DEMAND})
    return frozenset(Market)


def _pool_types(draft: Draft) -> None:
    for i, pool, cloud in _pools_with_clouds(draft):
        types = cloud.types if isinstance(cloud, _TYPED) else {}
        at = ("pools", i, "instance_types")
        if isinstance(cloud, AwsCloud | _NO_SPOT) and not pool.instance_types:
            expected = f"at least one of the types of cloud {cloud.name}: {', '.join(types)}"
            draft.problems.add(at, "no instance types", expected)
        for n, name in enumerate(pool.instance_types):
            if types and name not in types:
                expected = f"a type of cloud {cloud.name}: one of {', '.join(types)}"
                hint = nearest(name, types)
                draft.problems.add((*at, n), shown(name), expected, hint)
            elif types:
                _type_fits(draft, (*at, n), pool, cloud, name)


def _type_fits(draft: Draft, at: KeyPath, pool: PoolSettings, cloud: AnyCloud, name: str) -> None:
    kind = cloud.types[name] if isinstance(cloud, _TYPED) else None
    if kind is None:
        return
    have = {"cpus": kind.cpus, "MiB of memory": kind.memory, **kind.gres}
    need = {"cpus": pool.cpus, "MiB of memory": pool.slurm_memory, **pool.gres}
    for what, count in need.items():
        if have.get(what, 0) < count:
            found = f"{shown(name)} with {have.get(what, 0)} {what}"
            expected = f"at least the {count} {what} of the pool's nodes"
            draft.problems.add(at, found, expected)


def _pool_zones(draft: Draft) -> None:
    for i, pool, cloud in _pools_with_clouds(draft):
        zones: Iterable[str]
        if isinstance(cloud, AwsCloud):
            zones = cloud.zones or tuple(cloud.subnets)
        else:
            zones = _own_zones(cloud)
        for n, zone in enumerate(pool.zones):
            if zones and zone not in zones:
                expected = f"a zone of cloud {cloud.name}: one of {', '.join(zones)}"
                hint = nearest(zone, zones)
                draft.problems.add(("pools", i, "zones", n), shown(zone), expected, hint)


def _own_zones(
    cloud: LocalCloud | OpenNebulaCloud | OpenStackCloud | DockerCloud | FakeCloud,
) -> tuple[str, ...]:
    if isinstance(cloud, FakeCloud):
        return cloud.zones
    if isinstance(cloud, DockerCloud):
        return tuple(cloud.hosts)
    if isinstance(cloud, OpenStackCloud):
        return cloud.zones or (ONE_ZONE,)
    return (LOCAL_ZONE,) if isinstance(cloud, LocalCloud) else (ONE_ZONE,)


def _pool_price(draft: Draft) -> None:
    for i, pool, cloud in _pools_with_clouds(draft):
        cheapest = _cheapest(pool, cloud)
        if pool.max_price is None or cheapest is None or Market.SPOT in pool.markets:
            continue
        if pool.max_price < cheapest[0]:
            expected = f"at least {cheapest[0]:g}, the price of {cheapest[1]}"
            expected += ": without spot nothing is cheaper"
            draft.problems.add(("pools", i, "max_price"), describe(pool.max_price), expected)


def _ports(draft: Draft) -> None:
    """Pools with own ports may share a host, so no port may serve two nodes."""
    taken: list[tuple[int, range]] = []
    for i, pool in draft.pools.items():
        count = len(draft.nodes.get(i, ()))
        if pool.slurmd_port is None or not count:
            continue
        ports = range(pool.slurmd_port, pool.slurmd_port + count)
        at = ("pools", i, "slurmd_port")
        found = f"{ports[0]} to {ports[-1]} for {count} nodes"
        if ports[-1] > 65535:
            draft.problems.add(
                at, found, f"at most {65536 - count}, so that the last fits in 65535"
            )
        for other, theirs in taken:
            if ports[0] <= theirs[-1] and theirs[0] <= ports[-1]:
                whose = f"pools[{other}] ({draft.pools[other].name})"
                expected = f"no port of {whose}, which has {theirs[0]} to {theirs[-1]}"
                draft.problems.add(at, found, expected)
        taken.append((i, ports))


def _local_hosts(draft: Draft) -> None:
    """All machines of provider local are on this host: own sockets, own ports."""
    sockets: dict[str, int] = {}
    for i, cloud in draft.clouds.items():
        if isinstance(cloud, LocalCloud) and sockets.setdefault(cloud.socket, i) != i:
            found = f"{shown(cloud.socket)}, which clouds[{sockets[cloud.socket]}] has already"
            draft.problems.add(("clouds", i, "socket"), found, "a socket of its own")
    local = [(i, p) for i, p, cloud in _pools_with_clouds(draft) if isinstance(cloud, LocalCloud)]
    if sum(len(draft.nodes.get(i, ())) for i, _ in local) > 1:
        for i, pool in local:
            if pool.slurmd_port is None:
                expected = (
                    "the first of consecutive ports: the nodes of provider local share a host"
                )
                draft.problems.add(("pools", i), "no 'slurmd_port'", expected)


def _timings(draft: Draft) -> None:
    _at_least(draft, "cooldown_max", "capacity_cooldown")
    _at_least(draft, "cooldown_max", "quota_cooldown")
    _at_least(draft, "heartbeat_stale", "reconcile")
    _at_least(draft, "resume_timeout", "transient_deadline")
    retries = draft.timing("transient_deadline")
    for i, boot in draft.each("clouds", "resume_timeout", float).items():
        if retries is not None and boot < retries:
            expected = f"at least timings.transient_deadline, {_time(retries)}"
            draft.problems.add(("clouds", i, "resume_timeout"), _time(boot), expected)
    for i, pool, cloud in _pools_with_clouds(draft):
        longest = cloud.resume_timeout or draft.timing("resume_timeout")
        if pool.max_age is not None and longest is not None and pool.max_age <= longest:
            expected = f"more than {_time(longest)}, the resume_timeout of its cloud"
            draft.problems.add(("pools", i, "max_age"), _time(pool.max_age), expected)


def _booting(draft: Draft) -> None:
    for i, pool, cloud in _pools_with_clouds(draft):
        if pool.max_booting and cloud.max_booting and pool.max_booting > cloud.max_booting:
            expected = f"at most {cloud.max_booting}, the max_booting of cloud {cloud.name}"
            draft.problems.add(("pools", i, "max_booting"), describe(pool.max_booting), expected)


def _at_least(draft: Draft, key: str, floor: str) -> None:
    value, least = draft.timing(key), draft.timing(floor)
    if value is not None and least is not None and value < least:
        expected = f"at least timings.{floor}, {_time(least)}"
        draft.problems.add(("timings", key), _time(value), expected)


def _who_times(draft: Draft) -> None:
    scopes: list[tuple[KeyPath, float | None, float | None]] = []
    scopes.append((("who", "default_time"), draft.who.default_time, draft.who.max_time))
    for i, cloud in draft.clouds.items():
        if cloud.who is not None:
            who = effective_who(cloud.who, draft.who)
            scopes.append((("clouds", i, "who", "default_time"), who.default_time, who.max_time))
    for at, default, most in scopes:
        if default is not None and most is not None and default > most:
            draft.problems.add(at, _time(default), f"at most max_time, {_time(most)}")


def _limits(draft: Draft) -> None:
    pools = [(pool, cloud) for _, pool, cloud in _pools_with_clouds(draft)]
    everywhere = draft.section("limits", Limits, Limits())
    scopes: list[tuple[KeyPath, Limits, list[tuple[PoolSettings, AnyCloud]]]] = []
    if everywhere is not None:
        scopes.append((("limits",), everywhere, pools))
    for i, cloud in draft.clouds.items():
        own = [(p, c) for p, c in pools if c is cloud]
        scopes.append((("clouds", i, "limits"), cloud.limits, own))
    for at, limits, bound in scopes:
        _zero_limits(draft, at, limits)
        if draft.all_whole and bound:
            _market_limits(draft, at, limits, bound)
            _spending_limit(draft, at, limits, bound)


def _zero_limits(draft: Draft, at: KeyPath, limits: Limits) -> None:
    if limits.nodes == 0:
        draft.problems.add((*at, "nodes"), "0", "at least 1: with 0 nothing could ever start")
    if limits.dollars_per_hour == 0:
        expected = "more than 0: without the key, public clouds stay shut"
        draft.problems.add((*at, "dollars_per_hour"), "0", expected)


def _market_limits(
    draft: Draft, at: KeyPath, limits: Limits, pools: list[tuple[PoolSettings, AnyCloud]]
) -> None:
    bounds: Mapping[Market, tuple[str, int | None]] = {
        Market.SPOT: ("spot", limits.spot),
        Market.ON_DEMAND: ("on_demand", limits.on_demand),
    }
    shut = {market for market, (_, limit) in bounds.items() if limit == 0}
    for market, (key, limit) in bounds.items():
        used = [pool for pool, cloud in pools if market in _markets_used(pool, cloud)]
        if limit and not used:
            expected = f"no such limit: none of these pools uses the {market} market"
            draft.problems.add((*at, key), describe(limit), expected)
    for pool, cloud in pools:
        used_markets = _markets_used(pool, cloud)
        if used_markets <= shut:
            key = bounds[min(used_markets)][0]
            words = " and ".join(sorted(used_markets))
            expected = f"at least 1: pool {pool.name} uses nothing but {words}"
            draft.problems.add((*at, key), "0", expected)


def _spending_limit(
    draft: Draft, at: KeyPath, limits: Limits, pools: list[tuple[PoolSettings, AnyCloud]]
) -> None:
    for pool, cloud in pools:
        cheapest = _cheapest(pool, cloud)
        if limits.dollars_per_hour and cheapest and limits.dollars_per_hour < cheapest[0]:
            expected = f"at least {cheapest[0]:g}, one {cheapest[1]} of pool {pool.name}"
            found = describe(limits.dollars_per_hour)
            draft.problems.add((*at, "dollars_per_hour"), found, expected)


def _cheapest(pool: PoolSettings, cloud: AnyCloud) -> tuple[float, str] | None:
    """The pool's cheapest machine at its full price ($/h) and its name; None if not known."""
    if isinstance(cloud, LocalCloud):
        return cloud.price, "machine"
    names = pool.instance_types or tuple(cloud.types)
    prices = [(cloud.types[name].price, name) for name in names if name in cloud.types]
    return min(prices, default=None)


def _markets_used(pool: PoolSettings, cloud: AnyCloud) -> frozenset[Market]:
    """On-premises machines count as reserved, whatever the pool says."""
    if cloud.location is Location.ON_PREMISES:
        return frozenset({Market.RESERVED})
    return frozenset(pool.markets)


def _pools_with_clouds(draft: Draft) -> list[tuple[int, PoolSettings, AnyCloud]]:
    """The whole pools whose clouds are whole too."""
    found = [(i, pool, draft.cloud_of(pool)) for i, pool in draft.pools.items()]
    return [(i, pool, cloud) for i, pool, cloud in found if cloud is not None]


def _time(seconds: float) -> str:
    return str(format_duration(seconds))


FITS: tuple[Callable[[Draft], None], ...] = (
    _locations,
    _aws,
    _aws_launches,
    _aws_rates,
    _opennebula,
    _openstack,
    _type_prices,
    _pool_size,
    _pool_market,
    _pool_types,
    _pool_zones,
    _pool_price,
    _ports,
    _local_hosts,
    _timings,
    _booting,
    _who_times,
    _limits,
)
"""Every check of this module, in the order of the file."""
