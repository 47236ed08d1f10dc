"""EC2. Credentials are found by boto3's own means; the calls are those of the EC2 API reference.

A call that a server leaves without an answer ends after the cloud's ``timeout``; one that needs
several requests (thousands of machines) may take that long for each. A request that may have had
its effect is never repeated but under its client token.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.exceptions import ClientError

from slurm_elastic.config import AwsCloud, Cluster, InstanceType
from slurm_elastic.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    TransientError,
)
from slurm_elastic.model import (
    Instance,
    InstanceState,
    LaunchSpec,
    Market,
    Notice,
    NoticeKind,
    Offer,
    Pool,
)
from slurm_elastic.providers import aws_reading, aws_request, aws_tags
from slurm_elastic.providers.aws_claim import UNCLEAR, Claim, claim_of
from slurm_elastic.providers.aws_client import open_client
from slurm_elastic.providers.aws_errors import MISMATCH, translated
from slurm_elastic.providers.aws_user_data import read_parts

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

log = logging.getLogger(__name__)

PAGE = 1000
PRICES_FRESH = 60.0
"""Seconds for which one answer of the spot price history serves all pools."""
SPOT_NOTICE = 120.0
"""Seconds from the mark on a spot request to the machine's end (EC2 user guide)."""
_REPEATS = 2
_PAUSE = 0.3
_EARLY, _CONNECT = 0.05, 0.1
"""Parts of the time-out: in which a busy cloud is asked again, and for connecting."""


class AwsProvider:
    """One region of one account; see protocols.Provider for the contract. Thread-safe."""

    def __init__(
        self,
        settings: AwsCloud,
        cluster: Cluster,
        clock: Callable[[], float] = time.time,
        claim: Claim | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        joining: str = "",
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._monotonic = monotonic
        self._parts = read_parts(settings.user_data, settings.name, joining)
        self._lock = threading.Lock()
        self._ec2: EC2Client | None = None
        self._claim = claim or claim_of(settings, cluster, None)
        self._ours: set[str] = set()
        self._unclear: frozenset[str] = frozenset()
        self._zones: tuple[str, ...] = ()
        self._spot_prices: dict[tuple[str, str], float] = {}
        self._priced = float("-inf")

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """Shape and on-demand price from the settings, spot prices from the price history."""
        types = {
            name: self._settings.types[name]
            for name in pool.instance_types or self._settings.types
            if name in self._settings.types
        }
        zones = [z for z in self._usable_zones() if not pool.zones or z in pool.zones]
        spot = self._spot() if Market.SPOT in pool.markets else {}
        priced = (
            (name, zone, market, spot.get((name, zone)) if market is Market.SPOT else shape.price)
            for name, shape in types.items()
            for zone in zones
            for market in pool.markets
            if market is not Market.RESERVED
        )
        return tuple(
            self._offer(name, types[name], zone, market, price)
            for name, zone, market, price in priced
            if price is not None
        )

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """One RunInstances for each 1000 nodes; a later one that is refused makes it partial."""
        if not spec.nodes:
            return ()
        started: list[Instance] = []
        nodes_left = len(spec.nodes)
        for number, nodes in enumerate(aws_request.chunks(spec.nodes)):
            nodes_left -= len(nodes)
            # The least that this call must yield for the whole to reach its minimum yet.
            least = max(spec.minimum - len(started) - nodes_left, 1)
            try:
                machines = self._run(spec, nodes, number, min(least, len(nodes)))
            except TransientError:
                raise
            except ProviderError as error:
                if len(started) < max(spec.minimum, 1):
                    self._give_back(spec, started)
                    raise
                log.info("launch is partial generation=%s error=%s", spec.generation, error)
                break
            started += machines
            if len(machines) < len(nodes) and len(started) >= spec.minimum:
                break
        return self._standing(spec, started)

    def instances(self) -> Sequence[Instance]:
        """Found by tag, in pages of 1000."""
        filters = [
            {"Name": f"tag:{aws_tags.CLUSTER}", "Values": [self._cluster.uuid]},
            {"Name": "instance-state-name", "Values": aws_reading.ALIVE},
        ]
        request = {"Filters": filters, "MaxResults": PAGE}
        reservations = self._pages("describe_instances", "Reservations", request)
        return self._read(r for reservation in reservations for r in reservation["Instances"])

    def terminate(self, ids: Sequence[str]) -> None:
        """1000 a call. An id that was never seen with our tag is looked up, and left alone if it
        is not ours.
        """
        wanted = list(dict.fromkeys(ids))
        if not self._ours.issuperset(wanted):
            self.instances()
        for instance_id in wanted:
            if instance_id not in self._ours:
                log.warning(
                    "not terminated, gone or not ours cloud=%s id=%s", self.name, instance_id
                )
        mine = [i for i in wanted if i in self._ours]
        for start in range(0, len(mine), PAGE):
            self._terminate(mine[start : start + PAGE])

    def notices(self) -> Sequence[Notice]:
        """The spot requests of ours that are marked for termination.

        EC2 tells rebalance recommendations only to the machine itself and to EventBridge.
        """
        filters = [
            {"Name": f"tag:{aws_tags.CLUSTER}", "Values": [self._cluster.uuid]},
            {"Name": "status-code", "Values": ["marked-for-termination", "marked-for-stop"]},
        ]
        pages = self._pages(
            "describe_spot_instance_requests", "SpotInstanceRequests", {"Filters": filters}
        )
        now = self._clock()
        return [
            Notice(
                instance=request["InstanceId"],
                kind=NoticeKind.INTERRUPTION,
                seen=now,
                deadline=request["Status"]["UpdateTime"].timestamp() + SPOT_NOTICE,
            )
            for request in pages
            if request.get("InstanceId")
            and self._claim.owner(aws_reading.tags(request)) == self.name
        ]

    def check(self) -> None:
        """A DescribeInstances of five: needs the very right that reconcile needs."""
        filters = [{"Name": f"tag:{aws_tags.CLUSTER}", "Values": [self._cluster.uuid]}]
        self._send("describe_instances", {"Filters": filters, "MaxResults": 5})

    # launching

    def _run(
        self, spec: LaunchSpec, nodes: Sequence[str], number: int, minimum: int
    ) -> Sequence[Instance]:
        """The machines of one call, those included that are gone when it is repeated."""
        request = aws_request.run_instances(
            self._settings,
            self._cluster,
            spec,
            nodes,
            number=number,
            minimum=minimum,
            parts=self._parts,
        )
        try:
            answer = self._send("run_instances", request)
        except ClientError as error:
            return self._earlier(spec, nodes, error)
        return self._read(answer["Instances"])

    def _earlier(
        self, spec: LaunchSpec, nodes: Sequence[str], error: ClientError
    ) -> Sequence[Instance]:
        """What the token's first call started, where the settings have changed in between."""
        if error.response.get("Error", {}).get("Code", "") != MISMATCH:
            raise error
        found = [i for i in self.instances() if i.generation == spec.generation and i.node in nodes]
        if not found:
            text = "an earlier call of this launch differed, and its machines cannot be seen yet"
            raise TransientError(self.name, MISMATCH, text) from error
        return found

    def _standing(self, spec: LaunchSpec, started: Sequence[Instance]) -> Sequence[Instance]:
        """Those that are not gone yet; CapacityError where they are fewer than the minimum."""
        alive = [i for i in started if i.state is not InstanceState.TERMINATED]
        if len(alive) < max(min(spec.minimum, len(spec.nodes)), 1):
            self._give_back(spec, alive)
            text = f"{len(alive)} of {len(started)} machines started are left"
            raise CapacityError(self.name, "MachinesGone", text)
        place = {node: n for n, node in enumerate(spec.nodes)}
        return sorted(alive, key=lambda i: place.get(i.node, len(place)))

    def _give_back(self, spec: LaunchSpec, started: Sequence[Instance]) -> None:
        """End the machines of a launch that cannot reach its minimum."""
        if not started:
            return
        log.info("launch given back generation=%s machines=%d", spec.generation, len(started))
        try:
            self.terminate([i.id for i in started])
        except ProviderError as error:
            # The caller repeats the launch, which comes here again.
            text = f"machines of an incomplete launch could not be ended: {error.message}"
            raise TransientError(self.name, error.code, text) from error

    # ending

    def _terminate(self, ids: Sequence[str]) -> None:
        """EC2 ends all of a call or, when one id is unknown, none: leave those out it names."""
        if not ids:
            return
        try:
            self._send("terminate_instances", {"InstanceIds": list(ids)})
        except InstanceNotFound as error:
            missing = {i for i in ids if i in error.message}
            log.info("already gone cloud=%s ids=%s", self.name, ",".join(sorted(missing)))
            if missing:
                self._terminate([i for i in ids if i not in missing])
            elif len(ids) > 1:
                half = len(ids) // 2
                self._terminate(ids[:half])
                self._terminate(ids[half:])

    # offers

    def _offer(
        self, name: str, shape: InstanceType, zone: str, market: Market, price: float
    ) -> Offer:
        return Offer(
            cloud=self.name,
            location=self._settings.location,
            instance_type=name,
            zone=zone,
            market=market,
            price=price,
            cpus=shape.cpus,
            memory=shape.memory,
            gres=shape.gres,
            on_demand_price=shape.price,
        )

    def _usable_zones(self) -> tuple[str, ...]:
        """The settings' zones, or the subnets', or (asked once) the region's."""
        subnets = self._settings.subnets
        zones = self._settings.zones or tuple(subnets)
        if zones:
            return tuple(z for z in zones if not subnets or z in subnets)
        if not self._zones:
            filters = [
                {"Name": "zone-type", "Values": ["availability-zone"]},
                {"Name": "state", "Values": ["available"]},
            ]
            answer = self._send("describe_availability_zones", {"Filters": filters})
            self._zones = tuple(sorted(z["ZoneName"] for z in answer["AvailabilityZones"]))
        return self._zones

    def _spot(self) -> Mapping[tuple[str, str], float]:
        """The spot price of each (type, zone): the newest of each, one call for all."""
        with self._lock:
            if self._monotonic() - self._priced < PRICES_FRESH:
                return self._spot_prices
        request = {
            "InstanceTypes": sorted(self._settings.types),
            "ProductDescriptions": ["Linux/UNIX"],
            # From now on: that is the price in force and nothing older.
            "StartTime": self._clock(),
            "MaxResults": PAGE,
        }
        newest: dict[tuple[str, str], tuple[Any, float]] = {}
        for point in self._pages("describe_spot_price_history", "SpotPriceHistory", request):
            key = point["InstanceType"], point["AvailabilityZone"]
            if key not in newest or point["Timestamp"] > newest[key][0]:
                newest[key] = point["Timestamp"], float(point["SpotPrice"])
        with self._lock:
            self._spot_prices = {key: price for key, (_, price) in newest.items()}
            self._priced = self._monotonic()
            return self._spot_prices

    # talking

    def _read(self, records: Iterator[Any] | Sequence[Any]) -> Sequence[Instance]:
        owned = [(self._claim.owner(aws_reading.tags(r)), r) for r in records]
        unclear = frozenset(r["InstanceId"] for owner, r in owned if owner == UNCLEAR)
        self._say(unclear)
        mine = (r for owner, r in owned if owner == self.name)
        found = aws_reading.instances(mine, self._settings)
        # One that might be ours is not listed; but whoever names it has it in the ledger.
        self._ours.update((i.id for i in found), unclear)
        return found

    def _say(self, unclear: frozenset[str]) -> None:
        """Once for each: nobody lists these machines, and they cost money."""
        if unclear - self._unclear:
            log.warning(
                "machines of no cloud that can be told, left out: tag them %s=NAME or end them "
                "clouds=%s ids=%s",
                aws_tags.CLOUD,
                ",".join(sorted(self._claim.clouds)),
                ",".join(sorted(unclear)),
            )
        self._unclear |= unclear

    def _pages(self, operation: str, key: str, request: Mapping[str, object]) -> Iterator[Any]:
        token = None
        while True:
            answer = self._send(operation, {**request, **({"NextToken": token} if token else {})})
            yield from answer[key]
            token = answer.get("NextToken")
            if not token:
                return

    def _send(self, operation: str, request: Mapping[str, object]) -> Mapping[str, Any]:
        """One request, repeated a little while the cloud is only busy (it answers at once then)."""
        started = time.monotonic()
        repeat = 0
        while True:
            try:
                with translated(self.name):
                    answer: Mapping[str, Any] = getattr(self._client(), operation)(**request)
                    return answer
            except AuthError:
                # Credentials may be renewed while we run; a client keeps those it began with.
                self._ec2 = None
                raise
            except TransientError as error:
                late = time.monotonic() - started > self._settings.timeout * _EARLY
                if repeat == _REPEATS or late:
                    raise
                log.debug("repeated operation=%s error=%s", operation, error)
            time.sleep(random.uniform(_PAUSE / 2, _PAUSE) * 2**repeat)  # noqa: S311
            repeat += 1

    def _client(self) -> EC2Client:
        with self._lock:
            if self._ec2 is None:
                self._ec2 = open_client(self._settings, self._config())
            return self._ec2

    def _config(self) -> Config:
        """Botocore repeats nothing: it would ask four times for a capacity error (a 500), and a
        time-out of its own would be waited for as often.
        """
        timeout = self._settings.timeout
        return Config(
            connect_timeout=timeout * _CONNECT,
            read_timeout=timeout * (1 - _CONNECT - _EARLY),
            retries={"total_max_attempts": 1, "mode": "standard"},
        )
