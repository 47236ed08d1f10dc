"""The front of the emulated EC2, which adds to moto what a rehearsal needs.

What it adds is told in ``ec2``.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.sandbox import (
    ec2_control,
    ec2_events,
    ec2_fleet,
    ec2_images,
    ec2_moto,
    ec2_pricelist,
    ec2_quotas,
)
from slurm_elastic.sandbox.ec2_api import (
    Call,
    answer_xml,
    elements,
    error_xml,
    parse,
    s3_error_xml,
    with_states,
    without_instances,
)
from slurm_elastic.sandbox.ec2_cloud import EmulatedCloud
from slurm_elastic.sandbox.ec2_faults import PAGE, Ec2Error, Fault, FaultKind, Stage, Target
from slurm_elastic.sandbox.ec2_spot import told_xml
from slurm_elastic.sandbox.spec import IMAGE
from slurm_elastic.sandbox.steering import PREFIX, ControlAnswer, steered

log = logging.getLogger(__name__)


_REAP_EVERY = 0.2
_STATE_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}
_STATE_CODES |= {"stopping": 64, "stopped": 80}
_RESERVATION = re.compile(rb"<reservationId>(r-[0-9a-f]+)</reservationId>")

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Service = Callable[[str, Environ, bytes], ControlAnswer]
"""What serves the actions of one service, each with its request and its body."""


_S3 = "/s3/aws4_request"
"""In the signature of a request to S3."""
_DRY_RUN = Ec2Error("DryRunOperation", 412, "Request would have succeeded, but DryRun flag is set.")
_IMAGE = elements(
    imageId=IMAGE, imageState="available", name="emulated machine", platformDetails="Linux/UNIX"
)
_IMAGE_XML = f"<imagesSet><item>{_IMAGE}</item></imagesSet>"


class _Launch(Struct, frozen=True):
    """An answered launch, kept under its client token."""

    digest: bytes
    answer: ControlAnswer
    ids: tuple[str, ...]


class _Shop:
    """The front's calls that the fleet may make: one launch after the other within a request."""

    def __init__(self, front: Front, environ: Environ) -> None:
        self.cloud = front.cloud
        self._front = front
        self._environ = environ

    def refused(self, target: Target, call: Call) -> Ec2Error | None:
        fault = self.cloud.faults.take(target, Stage.STOCK)
        return fault.error(target.market) if fault else self._front.too_dear(call, target)

    def started(self, call: Call, target: Target, count: int) -> Sequence[str]:
        return self._front.start(call, target, count, self._environ)[1]


class Front:
    """The WSGI application. ``moto`` is moto's own; ``clock`` gives Unix time."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_tokens", "_fleets")}

    def __init__(
        self,
        cloud: EmulatedCloud,
        moto: ec2_moto.Application,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cloud = cloud
        self._moto = moto
        self._clock = clock
        # moto is not thread-safe; calls that hang or are dropped wait outside of it.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        task = PeriodicTask("reaper", self._reap, _REAP_EVERY, first_in_s=_REAP_EVERY)
        self.reaper = PeriodicThread(task, self._stopped)
        self._tokens: dict[str, _Launch] = {}
        self._fleets: dict[str, ec2_fleet.Fleet] = {}
        self._imports = ec2_images.Imports()
        self._services = {
            ec2_quotas.TARGET: self._json(lambda b: ec2_quotas.told(b, self.cloud.quotas)),
            ec2_pricelist.TARGET: self._json(
                lambda b: ec2_pricelist.told(b, self.cloud.listed_prices)
            ),
            ec2_events.TARGET: self._queues,
        }

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        path = environ.get("PATH_INFO", "")
        if path.startswith(PREFIX):
            answer = self._control(environ["REQUEST_METHOD"], path, body)
        elif _S3 in environ.get("HTTP_AUTHORIZATION", ""):
            refused = self._refused_by_bucket(environ)
            if refused is None:
                return self._bucket(environ, body, start_response)
            answer = refused
        else:
            # By the service that the request names; EC2's have no name there.
            service, dot, action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")
            named = self._services.get(service + dot)
            answer = named(action, environ, body) if named else self._api(environ, body)
        headers = [("Content-Type", answer.type), ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status} {'OK' if answer.status == 200 else 'Refused'}", headers)
        return [answer.body]

    def _reap(self) -> None:
        """Take interrupted machines when their notice is over."""
        with self._lock:
            self.cloud.reap(self._clock())

    def stop(self) -> None:
        """End what waits."""
        self._stopped.set()

    def _control(self, method: str, path: str, body: bytes) -> ControlAnswer:
        name, now = path.removeprefix(PREFIX), self._clock()
        with self._lock:
            if name == "reset":
                self._tokens.clear()
                self._fleets.clear()
                self._imports = ec2_images.Imports()
            request = (method, name, body)
            return steered(
                ec2_control.ORDERS, self.cloud, request, now, lambda: self.cloud.view(now)
            )

    def _api(self, environ: Environ, body: bytes) -> ControlAnswer:
        call = parse(body, environ.get("HTTP_AUTHORIZATION", ""))
        with self._lock:
            self.cloud.calls[call.action] += 1
            self.cloud.access_keys.add(call.key)
            target = call.target
            if call.action == "RunInstances":
                target = replace(target, zone=self.cloud.zone_of(call))
            too_fast = self.cloud.buckets.refuse(call)
        if too_fast:
            return _error(too_fast)
        refusal = self._strike(target, Stage.ENTRY)
        if refusal:
            return refusal
        if call.params.get("DryRun") == "true":
            return _error(_DRY_RUN)
        with self._lock:
            answer = self._serve(call, target, environ)
        return self._strike(target, Stage.ANSWER) or answer

    def _json(self, told: Callable[[bytes], bytes | Ec2Error]) -> Service:
        """Another service of Amazon's, whose errors have another form."""

        def serve(action: str, _environ: Environ, body: bytes) -> ControlAnswer:
            with self._lock:
                self.cloud.calls[action] += 1
                answer = told(body)
            fault = self.cloud.faults.take(Target(action=action), Stage.ENTRY)
            answer = (fault.error("") if fault else None) or answer
            if isinstance(answer, Ec2Error):
                return ControlAnswer(answer.status, ec2_quotas.error_json(answer), ec2_quotas.JSON)
            return ControlAnswer(200, answer, ec2_quotas.JSON)

        return serve

    def _queues(self, action: str, environ: Environ, body: bytes) -> ControlAnswer:
        """SQS, of which no fault and no limit of EC2's is."""
        region = parse(b"", environ.get("HTTP_AUTHORIZATION", "")).region
        with self._lock:
            self.cloud.calls[action] += 1
            self.cloud.queue.ready(region)
            answer = self._forward(environ, body)
        return replace(answer, type=ec2_events.JSON)

    def _refused_by_bucket(self, environ: Environ) -> ControlAnswer | None:
        """Faults of S3 go by ``S3`` and the method."""
        action = f"S3{environ['REQUEST_METHOD']}"
        with self._lock:
            self.cloud.calls[action] += 1
        target = Target(action=action)
        fault = self.cloud.faults.strike(target, Stage.ENTRY, self._stopped)
        if fault is None:
            return None
        error = _error_of(fault, target)
        return ControlAnswer(error.status, s3_error_xml(error))

    def _bucket(
        self, environ: Environ, body: bytes, start_response: StartResponse
    ) -> Iterable[bytes]:
        """S3, whose answers are in their headers, too."""
        with self._lock:
            return [*self._moto(environ | {"wsgi.input": io.BytesIO(body)}, start_response)]

    def _strike(self, target: Target, stage: Stage) -> ControlAnswer | None:
        """The error that a fault makes of this call; ConnectionError drops the connection."""
        fault = self.cloud.faults.strike(target, stage, self._stopped)
        if fault is None:
            return None
        if fault.kind is FaultKind.GARBAGE:
            return ControlAnswer(200, PAGE, "text/html")
        return _refusal(fault, target)

    def _serve(self, call: Call, target: Target, environ: Environ) -> ControlAnswer:
        now = self._clock()
        match call.action:
            case "RunInstances":
                return self._run(call, target, environ)
            case "CreateFleet":
                return self._fleet(call, environ)
            case "StartInstances":
                return self._start_stopped(call, environ)
            case "DescribeFleets":
                return self._described(call.listed("FleetId"))
            case "DescribeInstances":
                return self._seen(call, environ, now)
            case "ImportSnapshot" | "DescribeImportSnapshotTasks":
                told = self._imports.told(call)
                return _error(told) if isinstance(told, Ec2Error) else ControlAnswer(200, told)
            case "RegisterImage":
                return self._register(call, environ)
            case "DescribeImages" if call.listed("ImageId") == [IMAGE]:
                return ControlAnswer(200, answer_xml(call.action, _IMAGE_XML))
        body = told_xml(self.cloud, call, now)
        return ControlAnswer(200, body) if body else self._forward(environ, call.body({}))

    def _described(self, wanted: Sequence[str]) -> ControlAnswer:
        found = [f for f in self._fleets.values() if not wanted or f.id in wanted]
        return ControlAnswer(200, ec2_fleet.described_xml(found))

    def _seen(self, call: Call, environ: Environ, now: float) -> ControlAnswer:
        answer = self._forward(environ, call.body({}))
        hidden = self.cloud.hidden(now)
        if answer.status == 200 and hidden:
            return replace(answer, body=without_instances(answer.body, hidden))
        return answer

    def _run(self, call: Call, target: Target, environ: Environ) -> ControlAnswer:
        # Before the stock: an answered token is answered again even when that has run out since.
        before = self._before(call)
        if before:
            return before
        refusal = self._strike(target, Stage.STOCK)
        if refusal:
            return refusal
        dear = self.too_dear(call, target)
        if dear:
            return _error(dear)
        least, most = (int(call.params.get(name, 1)) for name in ("MinCount", "MaxCount"))
        free = self.cloud.free(target)
        count = most if free is None else min(most, free)
        if count < least:
            return _refusal(Fault(kind=FaultKind.CAPACITY), target)
        answer, ids = self.start(call, target, count, environ)
        if ids:
            self._remember(call, answer, ids)
        return answer

    def _register(self, call: Call, environ: Environ) -> ControlAnswer:
        """The image has the disk that it was given, other than moto's."""
        if refusal := ec2_images.refused(call):
            return _error(refusal)
        answer = self._forward(environ, call.body({}))
        if answer.status == 200:
            ec2_images.registered(call)
        return answer

    def _start_stopped(self, call: Call, environ: Environ) -> ControlAnswer:
        """A stopped machine has no host any more, and needs one as a fresh machine does."""
        for target in self.cloud.stopped(call.listed("InstanceId")):
            refusal = self._strike(replace(target, action=call.action), Stage.STOCK)
            if refusal:
                return refusal
            if self.cloud.free(target) == 0:
                return _refusal(Fault(kind=FaultKind.CAPACITY), target)
        return self._forward(environ, call.body({}))

    def _fleet(self, call: Call, environ: Environ) -> ControlAnswer:
        before = self._before(call)
        if before:
            return before
        shop = _Shop(self, environ)
        unknown = ec2_fleet.unknown_template(shop, call)
        if unknown:
            return _error(unknown)
        fleet = ec2_fleet.create(shop, call, self._clock())
        self._fleets[fleet.id] = fleet
        answer = ControlAnswer(200, ec2_fleet.created_xml(fleet))
        self._remember(call, answer, fleet.ids)
        return answer

    def start(
        self, call: Call, target: Target, count: int, environ: Environ
    ) -> tuple[ControlAnswer, Sequence[str]]:
        """Have moto start so many machines, and take note of them."""
        answer = self._forward(environ, call.body({"MinCount": str(count), "MaxCount": str(count)}))
        found = _RESERVATION.search(answer.body)
        if answer.status != 200 or not found:
            return answer, ()
        return answer, self.cloud.launched(call, found[1].decode(), target, self._clock())

    def _before(self, call: Call) -> ControlAnswer | None:
        """The answer that the call's client token had already."""
        before = self._tokens.get(call.params.get("ClientToken", ""))
        return self._again(before, _digest(call)) if before else None

    def _remember(self, call: Call, answer: ControlAnswer, ids: Sequence[str]) -> None:
        token = call.params.get("ClientToken", "")
        if token:
            self._tokens[token] = _Launch(_digest(call), answer, tuple(ids))

    def _again(self, before: _Launch, digest: bytes) -> ControlAnswer:
        if before.digest != digest:
            return _error(
                Ec2Error(
                    "IdempotentParameterMismatch",
                    400,
                    "Arguments on this idempotent request are inconsistent with arguments used "
                    "in previous request(s).",
                )
            )
        states = {i: self.cloud.machines[i].state for i in before.ids}
        coded = {i: (_STATE_CODES.get(name, 0), name) for i, name in states.items()}
        return replace(before.answer, body=with_states(before.answer.body, coded))

    def too_dear(self, call: Call, target: Target) -> Ec2Error | None:
        """The answer to a spot launch whose bound is below the price of now."""
        most = call.params.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        quote = self.cloud.prices.quote(target.type, target.zone, self._clock())
        if target.market != "spot" or most is None or quote is None or float(most) >= quote.price:
            return None
        text = f"Your Spot request price of {most} is lower than the minimum required {quote.price}"
        return Ec2Error("SpotMaxPriceTooLow", 400, text)

    def _forward(self, environ: Environ, body: bytes) -> ControlAnswer:
        return ControlAnswer(*ec2_moto.ask(self._moto, environ, body))


def _digest(call: Call) -> bytes:
    """Clients may put the same fields into another order."""
    return hashlib.sha256(repr(sorted(call.params.items())).encode()).digest()


def _refusal(fault: Fault, target: Target) -> ControlAnswer:
    return _error(_error_of(fault, target))


def _error_of(fault: Fault, target: Target) -> Ec2Error:
    """ConnectionError for one that drops the connection."""
    error = fault.error(target.market)
    if error is None:
        raise ConnectionAbortedError(f"fault {fault.kind}")
    return error


def _error(error: Ec2Error) -> ControlAnswer:
    return ControlAnswer(error.status, error_xml(error))
