"""The front of the emulated EC2: a WSGI application that serves some calls itself and passes the
others to moto. ``ec2`` lists the features that it adds.
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
from slurm_elastic.base.processes.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.sandbox.ec2 import control as ec2_control
from slurm_elastic.sandbox.ec2 import events as ec2_events
from slurm_elastic.sandbox.ec2 import fleet as ec2_fleet
from slurm_elastic.sandbox.ec2 import images as ec2_images
from slurm_elastic.sandbox.ec2 import moto_changes as ec2_moto
from slurm_elastic.sandbox.ec2 import placement as ec2_placement
from slurm_elastic.sandbox.ec2 import pricelist as ec2_pricelist
from slurm_elastic.sandbox.ec2 import quotas as ec2_quotas
from slurm_elastic.sandbox.ec2.api import (
    Ec2Call,
    answer_xml,
    elements,
    error_xml,
    parse,
    s3_error_xml,
    with_states,
    without_instances,
)
from slurm_elastic.sandbox.ec2.cloud import EmulatedCloud
from slurm_elastic.sandbox.ec2.faults import PAGE, Ec2Error, Fault, FaultKind, FaultTarget, Stage
from slurm_elastic.sandbox.ec2.spot import special_answer
from slurm_elastic.sandbox.spec import IMAGE
from slurm_elastic.sandbox.steering import PREFIX, ControlAnswer, answer_order

log = logging.getLogger(__name__)


_REAP_EVERY_S = 0.2
_STATE_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}
_STATE_CODES |= {"stopping": 64, "stopped": 80}
_RESERVATION = re.compile(rb"<reservationId>(r-[0-9a-f]+)</reservationId>")

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Service = Callable[[str, Environ, bytes], ControlAnswer]
"""A function that answers (action, request, body) for a service of Amazon."""


_S3 = "/s3/aws4_request"
"""The part of a signature that marks a request to S3."""
_DRY_RUN = Ec2Error("DryRunOperation", 412, "Request would have succeeded, but DryRun flag is set.")
_IMAGE = elements(
    imageId=IMAGE,
    imageState="available",
    name="emulated machine",
    platformDetails="Linux/UNIX",
    rootDeviceName="/dev/xvda",
)
_IMAGE_XML = f"<imagesSet><item>{_IMAGE}</item></imagesSet>"


class _Launch(Struct, frozen=True):
    """An answered launch, stored by its client token."""

    digest: bytes
    answer: ControlAnswer
    ids: tuple[str, ...]


class _Shop:
    """The part of the front that a fleet uses: several launches within one request."""

    def __init__(self, front: Ec2Front, environ: Environ) -> None:
        self.cloud = front.cloud
        self._front = front
        self._environ = environ

    def refusal_of(self, target: FaultTarget, call: Ec2Call) -> Ec2Error | None:
        fault = self.cloud.faults.take(target, Stage.STOCK)
        if fault:
            return fault.error(target.market)
        unknown_group = self.cloud.placement.refusal_of(call)
        return unknown_group or self._front.price_error(call, target)

    def start_machines(self, call: Ec2Call, target: FaultTarget, count: int) -> Sequence[str]:
        return self._front.start(call, target, count, self._environ)[1]


class Ec2Front:
    """The WSGI application. ``moto``: moto's own application; ``clock`` returns Unix time."""

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
        # moto is not thread-safe. Calls that a fault delays must wait without this lock.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        task = PeriodicTask("reaper", self._reap, _REAP_EVERY_S, first_in_s=_REAP_EVERY_S)
        self.reaper = PeriodicThread(task, self._stopped)
        self._tokens: dict[str, _Launch] = {}
        self._fleets: dict[str, ec2_fleet.FleetAnswer] = {}
        self._imports = ec2_images.Imports()
        self._services = {
            ec2_quotas.TARGET: self._json(lambda b: ec2_quotas.answer(b, self.cloud.quotas)),
            ec2_pricelist.TARGET: self._json(
                lambda b: ec2_pricelist.answer(b, self.cloud.listed_prices)
            ),
            ec2_events.TARGET: self._queues,
        }

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        path = environ.get("PATH_INFO", "")
        if path.startswith(PREFIX):
            answer = self._control(environ["REQUEST_METHOD"], path, body)
        elif _S3 in environ.get("HTTP_AUTHORIZATION", ""):
            s3_error = self._s3_fault(environ)
            if s3_error is None:
                return self._serve_s3(environ, body, start_response)
            answer = s3_error
        else:
            # Requests to EC2 lack this header, which names the service.
            service, dot, action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")
            named = self._services.get(service + dot)
            answer = named(action, environ, body) if named else self._api(environ, body)
        headers = [("Content-Type", answer.type), ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status} {'OK' if answer.status == 200 else 'Refused'}", headers)
        return [answer.body]

    def _reap(self) -> None:
        """Take interrupted machines when their notice has ended."""
        with self._lock:
            self.cloud.reap(self._clock())

    def stop(self) -> None:
        """End the waiting calls and the reaper."""
        self._stopped.set()

    def _control(self, method: str, path: str, body: bytes) -> ControlAnswer:
        name, now = path.removeprefix(PREFIX), self._clock()
        with self._lock:
            if name == "reset":
                self._tokens.clear()
                self._fleets.clear()
                self._imports = ec2_images.Imports()
            request = (method, name, body)
            return answer_order(
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

    def _json(self, answer_of: Callable[[bytes], bytes | Ec2Error]) -> Service:
        """Return the service for an Amazon API with JSON, whose errors have another form."""

        def serve(action: str, _environ: Environ, body: bytes) -> ControlAnswer:
            with self._lock:
                self.cloud.calls[action] += 1
                answer = answer_of(body)
            fault = self.cloud.faults.take(FaultTarget(action=action), Stage.ENTRY)
            answer = (fault.error("") if fault else None) or answer
            if isinstance(answer, Ec2Error):
                return ControlAnswer(answer.status, ec2_quotas.error_json(answer), ec2_quotas.JSON)
            return ControlAnswer(200, answer, ec2_quotas.JSON)

        return serve

    def _queues(self, action: str, environ: Environ, body: bytes) -> ControlAnswer:
        """Answer a call to SQS. EC2's faults and limits do not apply."""
        region = parse(b"", environ.get("HTTP_AUTHORIZATION", "")).region
        with self._lock:
            self.cloud.calls[action] += 1
            self.cloud.queue.ready(region)
            answer = self._forward(environ, body)
        return replace(answer, type=ec2_events.JSON)

    def _s3_fault(self, environ: Environ) -> ControlAnswer | None:
        """Return the error if a fault is set for this call to S3. In faults, the action of such a
        call is ``S3`` and the HTTP method.
        """
        action = f"S3{environ['REQUEST_METHOD']}"
        with self._lock:
            self.cloud.calls[action] += 1
        target = FaultTarget(action=action)
        fault = self.cloud.faults.strike(target, Stage.ENTRY, self._stopped)
        if fault is None:
            return None
        error = _error_of(fault, target)
        return ControlAnswer(error.status, s3_error_xml(error))

    def _serve_s3(
        self, environ: Environ, body: bytes, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a call to S3 by moto, with moto's headers, because S3's answers need them."""
        with self._lock:
            return [*self._moto(environ | {"wsgi.input": io.BytesIO(body)}, start_response)]

    def _strike(self, target: FaultTarget, stage: Stage) -> ControlAnswer | None:
        """Return the error that a fault gives this call; None without a fault. A raised
        ConnectionError drops the connection.
        """
        fault = self.cloud.faults.strike(target, stage, self._stopped)
        if fault is None:
            return None
        if fault.kind is FaultKind.GARBAGE:
            return ControlAnswer(200, PAGE, "text/html")
        return _refusal(fault, target)

    def _serve(self, call: Ec2Call, target: FaultTarget, environ: Environ) -> ControlAnswer:
        now = self._clock()
        match call.action:
            case "RunInstances":
                return self._run_instances(call, target, environ)
            case "CreateFleet":
                return self._create_fleet(call, environ)
            case "StartInstances":
                return self._start_stopped(call, environ)
            case "DescribeFleets":
                return self._describe_fleets(call.listed("FleetId"))
            case "DescribeInstances":
                return self._describe_instances(call, environ, now)
            case "ImportSnapshot" | "DescribeImportSnapshotTasks":
                import_answer = self._imports.answer(call)
                return (
                    _error(import_answer)
                    if isinstance(import_answer, Ec2Error)
                    else ControlAnswer(200, import_answer)
                )
            case "RegisterImage":
                return self._register(call, environ)
            case action if action in ec2_placement.ACTIONS:
                group_answer = self.cloud.placement.answer(call)
                return (
                    _error(group_answer)
                    if isinstance(group_answer, Ec2Error)
                    else ControlAnswer(200, group_answer)
                )
            case "DescribeImages" if call.listed("ImageId") == [IMAGE]:
                return ControlAnswer(200, answer_xml(call.action, _IMAGE_XML))
        body = special_answer(self.cloud, call, now)
        return ControlAnswer(200, body) if body else self._forward(environ, call.body({}))

    def _describe_fleets(self, ids: Sequence[str]) -> ControlAnswer:
        fleets = [f for f in self._fleets.values() if not ids or f.id in ids]
        return ControlAnswer(200, ec2_fleet.described_xml(fleets))

    def _describe_instances(self, call: Ec2Call, environ: Environ, now: float) -> ControlAnswer:
        answer = self._forward(environ, call.body({}))
        hidden = self.cloud.hidden(now)
        if answer.status == 200 and hidden:
            return replace(answer, body=without_instances(answer.body, hidden))
        return answer

    def _run_instances(self, call: Ec2Call, target: FaultTarget, environ: Environ) -> ControlAnswer:
        # Before the stock: a repeated token gets its answer even if the stock has run out.
        earlier_answer = self._earlier_answer(call)
        if earlier_answer:
            return earlier_answer
        refusal = self._strike(target, Stage.STOCK)
        if refusal:
            return refusal
        if unknown_group := self.cloud.placement.refusal_of(call):
            return _error(unknown_group)
        price_error = self.price_error(call, target)
        if price_error:
            return _error(price_error)
        if self.cloud.reservations.targeted(call):
            refused = self.cloud.reservations.refusal(call, target, self._clock())
            if refused:
                return _error(refused)
            return self._start_up_to(self.cloud.free_reserved(call), call, target, environ)
        return self._start_up_to(self.cloud.free(target), call, target, environ)

    def _start_up_to(
        self, free: int | None, call: Ec2Call, target: FaultTarget, environ: Environ
    ) -> ControlAnswer:
        """Start as many machines as are asked for and ``free``."""
        min_count, max_count = (int(call.params.get(name, 1)) for name in ("MinCount", "MaxCount"))
        count = max_count if free is None else min(max_count, free)
        if count < min_count and self.cloud.reservations.targeted(call):
            text = "The requested reservation does not have sufficient capacity."
            return _error(Ec2Error("ReservationCapacityExceeded", 400, text))
        if count < min_count:
            return _refusal(Fault(kind=FaultKind.CAPACITY), target)
        answer, ids = self.start(call, target, count, environ)
        if ids:
            self._store_launch(call, answer, ids)
        return answer

    def _register(self, call: Ec2Call, environ: Environ) -> ControlAnswer:
        """Register an image with the requested disk. moto would give it a disk of its own."""
        if refusal := ec2_images.refusal_of(call):
            return _error(refusal)
        answer = self._forward(environ, call.body({}))
        if answer.status == 200:
            ec2_images.complete_image(call)
        return answer

    def _start_stopped(self, call: Ec2Call, environ: Environ) -> ControlAnswer:
        """Start stopped machines if the stock permits. A stopped machine has no host, so it needs
        one like a new machine.
        """
        for target in self.cloud.stopped(call.listed("InstanceId")):
            refusal = self._strike(replace(target, action=call.action), Stage.STOCK)
            if refusal:
                return refusal
            if self.cloud.free(target) == 0:
                return _refusal(Fault(kind=FaultKind.CAPACITY), target)
        return self._forward(environ, call.body({}))

    def _create_fleet(self, call: Ec2Call, environ: Environ) -> ControlAnswer:
        earlier_answer = self._earlier_answer(call)
        if earlier_answer:
            return earlier_answer
        shop = _Shop(self, environ)
        unknown = ec2_fleet.unknown_template(shop, call)
        if unknown:
            return _error(unknown)
        fleet = ec2_fleet.create(shop, call, self._clock())
        self._fleets[fleet.id] = fleet
        answer = ControlAnswer(200, ec2_fleet.created_xml(fleet))
        self._store_launch(call, answer, fleet.ids)
        return answer

    def start(
        self, call: Ec2Call, target: FaultTarget, count: int, environ: Environ
    ) -> tuple[ControlAnswer, Sequence[str]]:
        """Let moto start so many machines, and record them. Returns the answer and the ids."""
        answer = self._forward(environ, call.body({"MinCount": str(count), "MaxCount": str(count)}))
        match = _RESERVATION.search(answer.body)
        if answer.status != 200 or not match:
            return answer, ()
        return answer, self.cloud.launched(call, match[1].decode(), target, self._clock())

    def _earlier_answer(self, call: Ec2Call) -> ControlAnswer | None:
        """Return the earlier answer to the call's client token; None if the token is new."""
        launch = self._tokens.get(call.params.get("ClientToken", ""))
        return self._repeat_answer(launch, _digest(call)) if launch else None

    def _store_launch(self, call: Ec2Call, answer: ControlAnswer, ids: Sequence[str]) -> None:
        token = call.params.get("ClientToken", "")
        if token:
            self._tokens[token] = _Launch(_digest(call), answer, tuple(ids))

    def _repeat_answer(self, launch: _Launch, digest: bytes) -> ControlAnswer:
        if launch.digest != digest:
            return _error(
                Ec2Error(
                    "IdempotentParameterMismatch",
                    400,
                    "Arguments on this idempotent request are inconsistent with arguments used "
                    "in previous request(s).",
                )
            )
        states = {i: self.cloud.machines[i].state for i in launch.ids}
        coded = {i: (_STATE_CODES.get(name, 0), name) for i, name in states.items()}
        return replace(launch.answer, body=with_states(launch.answer.body, coded))

    def price_error(self, call: Ec2Call, target: FaultTarget) -> Ec2Error | None:
        """Return EC2's error if a spot launch's maximum price is below the present price, else
        None.
        """
        max_price = call.params.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        quote = self.cloud.prices.quote(target.type, target.zone, self._clock())
        if (
            target.market != "spot"
            or max_price is None
            or quote is None
            or float(max_price) >= quote.price
        ):
            return None
        text = (
            f"Your Spot request price of {max_price} is lower than the minimum required"
            f" {quote.price}"
        )
        return Ec2Error("SpotMaxPriceTooLow", 400, text)

    def _forward(self, environ: Environ, body: bytes) -> ControlAnswer:
        return ControlAnswer(*ec2_moto.ask(self._moto, environ, body))


def _digest(call: Ec2Call) -> bytes:
    """Return a digest of the fields in sorted order, because clients may reorder the same
    fields.
    """
    return hashlib.sha256(repr(sorted(call.params.items())).encode()).digest()


def _refusal(fault: Fault, target: FaultTarget) -> ControlAnswer:
    return _error(_error_of(fault, target))


def _error_of(fault: Fault, target: FaultTarget) -> Ec2Error:
    """Return EC2's error for a fault. Raises ConnectionError if the fault drops the connection."""
    error = fault.error(target.market)
    if error is None:
        raise ConnectionAbortedError(f"fault {fault.kind}")
    return error


def _error(error: Ec2Error) -> ControlAnswer:
    return ControlAnswer(error.status, error_xml(error))
