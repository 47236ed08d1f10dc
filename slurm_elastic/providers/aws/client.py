"""The EC2 API of one account in one region: calls are paced, errors translated, and busy calls
retried.

A request that may have taken effect is only ever repeated with the same client token.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.utils import parse_timestamp

from slurm_elastic.base import trust
from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import AuthError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.processes.bounded import bound_boto
from slurm_elastic.providers.aws.convert import READ, READ_OF_PLACEMENT
from slurm_elastic.providers.aws.errors import THROTTLES, is_lack_of_resources, translated
from slurm_elastic.providers.aws.rate_limit import Busy, RateLimits
from slurm_elastic.providers.aws.settings import AwsCloud

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

log = logging.getLogger(__name__)

FILTERED = 200
"""So many values a filter may have."""
PAGE = 1000
MAX_PAGES = 1000
"""No account has a million machines in a region, so a longer answer is broken."""
_MAX_RETRIES = 2
_PAUSES = Backoff(0.3, 0.6)
_RETRY_FRACTION, _CONNECT_FRACTION = 0.05, 0.1
"""Fractions of the time-out: how long a busy cloud is retried, and how long connecting may take."""
_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}
_TURN_FRACTION = 1 / 3
"""The fraction of the time-out for which a call waits for its turn before it is sent."""


class AwsApi:
    """Sends requests. Thread-safe. ``pace`` is None if the limits of the service are not known
    beforehand.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_ec2")}

    def __init__(self, settings: AwsCloud, pace: RateLimits | None) -> None:
        self.pace = pace
        self.max_wait_s = settings.api_timeout * _TURN_FRACTION
        self._settings = settings
        self._sleep = time.sleep if pace is None else pace.sleep
        self._lock = threading.Lock()
        self._ec2: EC2Client | None = None

    def send(
        self, operation: str, request: Mapping[str, object], machines: int = 1
    ) -> Mapping[str, Any]:
        """Send one request about ``machines`` machines. ``operation`` is boto3's name of the
        request.

        If the cloud is only busy, the request is retried for a short time: a busy cloud answers at
        once. Raises a ProviderError for every error that EC2 or the network reports.
        """
        started = time.monotonic()
        retries = 0
        while True:
            self._wait_turn(operation, machines)
            try:
                with translated(self._settings.name):
                    answer: Mapping[str, Any] = getattr(self._client(), operation)(**request)
            except AuthError:
                # An administrator may renew the credentials while we run, but a client keeps the
                # credentials it started with.
                with self._lock:
                    self._ec2 = None
                raise
            except TransientError as error:
                self._note(operation, machines, error)
                # A slow answer may mean that the request took effect; only an early refusal is
                # certain to be a busy cloud.
                too_late = time.monotonic() - started > self._settings.api_timeout * _RETRY_FRACTION
                if retries == _MAX_RETRIES or too_late:
                    raise
                log.debug("repeated operation=%s error=%s", operation, error)
            else:
                if self.pace is not None:
                    self.pace.accepted(operation)
                return answer
            retries += 1
            # A random part keeps clients that were refused together from coming back together.
            self._sleep(random.uniform(0.5, 1.0) * _PAUSES.after(retries))  # noqa: S311

    def pages(self, operation: str, key: str, request: Mapping[str, object]) -> Iterator[Any]:
        """The items of all pages of an answer.

        TransientError if a page lacks the list, even an empty one. EC2 never answers like this, but
        a proxy may, and its page must not be taken for "there are none".
        """
        token = None
        for _ in range(MAX_PAGES):
            answer = self.send(operation, {**request, **({"NextToken": token} if token else {})})
            if key not in answer:
                text = f"the answer to {operation} has no {key}"
                raise TransientError(self._settings.name, "BadAnswer", text)
            yield from answer[key]
            token = answer.get("NextToken")
            if not token:
                return
        text = f"the answer to {operation} has no end after {MAX_PAGES} pages"
        raise TransientError(self._settings.name, "BadAnswer", text)

    def accepted(self, operation: str, field: str, value: Any) -> Any:  # noqa: ANN401
        """``value``, a field of a request, without all that such a request does not accept. Some
        of EC2's answers have more fields than the requests that they answer.
        """
        with translated(self._settings.name):
            model: Any = self._client().meta.service_model.operation_model(operation)
        return _pruned(value, model.input_shape.members[field])

    def _wait_turn(self, operation: str, machines: int) -> None:
        if self.pace is None:
            return
        try:
            self.pace.take(operation, machines, self.max_wait_s)
        except Busy as busy:
            raise TransientError(self._settings.name, "Paced", str(busy)) from busy

    def _note(self, operation: str, machines: int, error: TransientError) -> None:
        if self.pace is not None and error.code in THROTTLES:
            log.warning("throttled cloud=%s operation=%s", self._settings.name, operation)
            lacks_resources = is_lack_of_resources(error.message)
            self.pace.rejected(operation, machines, lacks_resources=lacks_resources)

    def _client(self) -> EC2Client:
        with self._lock:
            if self._ec2 is None:
                self._ec2 = open_client(self._settings, self._config())
            return self._ec2

    def _config(self) -> Config:
        """Time-outs that keep a whole call within the cloud's time-out."""
        timeout = self._settings.api_timeout
        return Config(
            connect_timeout=timeout * _CONNECT_FRACTION,
            read_timeout=timeout * (1 - _CONNECT_FRACTION - _RETRY_FRACTION),
            # By default botocore repeats a call four times, even after a capacity error (a 500),
            # and waits for the time-out each time.
            retries={"total_max_attempts": 1, "mode": "standard"},
        )


_INSTANCES = {
    "RunInstances": ("Instances",),
    "DescribeInstances": ("Reservations", "Instances"),
}
"""The path to the machines in an answer: lists within lists."""


def open_client(settings: AwsCloud, config: Config) -> EC2Client:
    """A client of a new session, so that the credentials are read again."""
    _require_trusted_files(settings.name, os.environ)
    core = botocore.session.get_session()
    # Botocore's own parser guesses the format of each date, which takes long for a thousand
    # machines.
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
    session = boto3.session.Session(
        profile_name=settings.profile, region_name=settings.region, botocore_session=core
    )
    client = session.client("ec2", endpoint_url=settings.endpoint, config=config)
    bound_boto(client, settings.api_timeout)
    # EC2 reports sixty fields of a machine, and we read twelve. Converting all of them took 0.4 s
    # of processor time for a thousand machines, as much as the rest of a launch. Trimming the model
    # halves the time.
    _trim(client.meta.service_model)
    return client


@contextlib.contextmanager
def other_service(settings: AwsCloud, name: str, region: str) -> Iterator[Any]:
    """A client of another service than EC2, closed at the end. Errors raised inside are
    translated.
    """
    with translated(settings.name), contextlib.closing(plain_client(settings, name, region)) as c:
        yield c


def plain_client(settings: AwsCloud, name: str, region: str, attempts: int = 2) -> Any:  # noqa: ANN401
    """A client of a service with all fields of its answers. It sends a request at most ``attempts``
    times. Its calls raise botocore's errors.
    """
    _require_trusted_files(settings.name, os.environ)
    session: Any = boto3.session.Session(profile_name=settings.profile, region_name=region)
    limits = Config(
        connect_timeout=settings.api_timeout / 10,
        read_timeout=settings.api_timeout,
        retries={"total_max_attempts": attempts, "mode": "standard"},
    )
    client = session.client(name, endpoint_url=settings.endpoint_of(name), config=limits)
    bound_boto(client, settings.api_timeout * 2)
    return client


def _require_trusted_files(cloud: str, env: Mapping[str, str]) -> None:
    """AuthError if other users may write a file that the SDK reads. Such a file may name a program
    to run (``credential_process``).
    """
    for name, default_path in _FILES.items():
        path, flaw = os.path.expanduser(env.get(name) or default_path), None
        with contextlib.suppress(OSError):
            flaw = trust.flaw(path, trust.ours())
        if flaw:
            raise AuthError(cloud, "NoCredentials", flaw)


def _parse_time(value: Any) -> datetime:  # noqa: ANN401 - any of the forms that botocore takes
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return parse_timestamp(value)


def _trim(model: Any) -> None:  # noqa: ANN401 - botocore has no types of its own
    """Remove the fields that we do not read from botocore's model. Botocore ignores fields that its
    model lacks.
    """
    for operation, path in _INSTANCES.items():
        shape = model.operation_model(operation).output_shape
        for name in path:
            shape = shape.members[name].member
        _drop_all_but(shape.members, READ)
        _drop_all_but(shape.members["Placement"].members, READ_OF_PLACEMENT)


def _pruned(value: Any, shape: Any) -> Any:  # noqa: ANN401 - botocore has no types of its own
    """The value without the fields that the shape lacks, and without structures that had no other
    fields.
    """
    if shape.type_name == "list":
        return [_pruned(item, shape.member) for item in value]
    if shape.type_name != "structure":
        return value
    members = shape.members
    kept = {name: _pruned(field, members[name]) for name, field in value.items() if name in members}
    return {name: field for name, field in kept.items() if field != {} or value[name] == {}}


def _drop_all_but(members: dict[str, object], kept: Iterable[str]) -> None:
    for name in members.keys() - set(kept):
        del members[name]
