"""One account's EC2 API in a region: calls paced, their errors translated, a little repeated.

A request that may have had its effect is never repeated but under its client token.
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
from slurm_elastic.base.bounded import bound_boto
from slurm_elastic.base.errors import AuthError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.providers.aws.convert import READ, READ_OF_PLACEMENT
from slurm_elastic.providers.aws.errors import THROTTLES, translated
from slurm_elastic.providers.aws.rate_limit import Busy, Pace
from slurm_elastic.providers.aws.settings import AwsCloud

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

log = logging.getLogger(__name__)

PAGE = 1000
MOST_PAGES = 1000
"""No account has a million machines in a region: an answer that goes on is none."""
_REPEATS = 2
_PAUSES = Backoff(0.3, 0.6)
_EARLY, _CONNECT = 0.05, 0.1
"""Parts of the time-out: in which a busy cloud is asked again, and for connecting."""
_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}
_PATIENCE = 1 / 3
"""And the part that a call waits for its turn before it is made."""


class Api:
    """Thread-safe. ``pace`` None: the service has no limits that are known beforehand."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_ec2")}

    def __init__(self, settings: AwsCloud, pace: Pace | None) -> None:
        self.pace = pace
        self.patience = settings.timeout * _PATIENCE
        self._settings = settings
        self._sleep = time.sleep if pace is None else pace.sleep
        self._lock = threading.Lock()
        self._ec2: EC2Client | None = None

    def send(
        self, operation: str, request: Mapping[str, object], machines: int = 1
    ) -> Mapping[str, Any]:
        """One request about so many machines, repeated a little while the cloud is only busy (it
        answers at once then). ``operation`` is boto3's name for it.
        """
        started = time.monotonic()
        repeat = 0
        while True:
            self._wait_turn(operation, machines)
            try:
                with translated(self._settings.name):
                    answer: Mapping[str, Any] = getattr(self._client(), operation)(**request)
            except AuthError:
                # Credentials may be renewed while we run; a client keeps those it began with.
                with self._lock:
                    self._ec2 = None
                raise
            except TransientError as error:
                self._note(operation, machines, error)
                late = time.monotonic() - started > self._settings.timeout * _EARLY
                if repeat == _REPEATS or late:
                    raise
                log.debug("repeated operation=%s error=%s", operation, error)
            else:
                if self.pace is not None:
                    self.pace.accepted(operation)
                return answer
            repeat += 1
            self._sleep(random.uniform(0.5, 1.0) * _PAUSES.after(repeat))  # noqa: S311

    def pages(self, operation: str, key: str, request: Mapping[str, object]) -> Iterator[Any]:
        """The items of all pages of an answer. One without the list, not even an empty one, is not
        EC2's (a proxy's page, perhaps) and must not pass for "there are none".
        """
        token = None
        for _ in range(MOST_PAGES):
            answer = self.send(operation, {**request, **({"NextToken": token} if token else {})})
            if key not in answer:
                text = f"the answer to {operation} has no {key}"
                raise TransientError(self._settings.name, "BadAnswer", text)
            yield from answer[key]
            token = answer.get("NextToken")
            if not token:
                return
        text = f"the answer to {operation} has no end after {MOST_PAGES} pages"
        raise TransientError(self._settings.name, "BadAnswer", text)

    def _wait_turn(self, operation: str, machines: int) -> None:
        if self.pace is None:
            return
        try:
            self.pace.take(operation, machines, self.patience)
        except Busy as busy:
            raise TransientError(self._settings.name, "Paced", str(busy)) from busy

    def _note(self, operation: str, machines: int, error: TransientError) -> None:
        if self.pace is not None and error.code in THROTTLES:
            log.warning("throttled cloud=%s operation=%s", self._settings.name, operation)
            self.pace.rejected(operation, machines, error.message)

    def _client(self) -> EC2Client:
        with self._lock:
            if self._ec2 is None:
                self._ec2 = open_client(self._settings, self._config())
            return self._ec2

    def _config(self) -> Config:
        """All that a call may take is within the cloud's time-out."""
        timeout = self._settings.timeout
        return Config(
            connect_timeout=timeout * _CONNECT,
            read_timeout=timeout * (1 - _CONNECT - _EARLY),
            # Botocore would ask four times for a capacity error (a 500), and wait for a time-out as
            # often.
            retries={"total_max_attempts": 1, "mode": "standard"},
        )


_INSTANCES = {
    "RunInstances": ("Instances",),
    "DescribeInstances": ("Reservations", "Instances"),
}
"""Where an answer has its machines: lists in lists."""


def open_client(settings: AwsCloud, config: Config) -> EC2Client:
    """A client of its own session, so that credentials are looked for anew."""
    _require_ours(settings.name, os.environ)
    core = botocore.session.get_session()
    # Botocore's own parser guesses the form of each date, which takes long for a thousand machines.
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_when)
    session = boto3.session.Session(
        profile_name=settings.profile, region_name=settings.region, botocore_session=core
    )
    client = session.client("ec2", endpoint_url=settings.endpoint, config=config)
    bound_boto(client, settings.timeout)
    # EC2 tells sixty things of a machine, of which we read eleven. To make Python values of all
    # took 0.4 s of processor time for a thousand, as much as all else of a launch; so it is half.
    _trim(client.meta.service_model)
    return client


@contextlib.contextmanager
def other_service(settings: AwsCloud, name: str, region: str) -> Iterator[Any]:
    """A client of another service than EC2, for as long as it is needed; errors translated."""
    session: Any = boto3.session.Session(profile_name=settings.profile, region_name=region)
    limits = Config(
        connect_timeout=settings.timeout / 10,
        read_timeout=settings.timeout,
        retries={"total_max_attempts": 2, "mode": "standard"},
    )
    with translated(settings.name):
        client = session.client(name, endpoint_url=settings.endpoint, config=limits)
        bound_boto(client, settings.timeout * 2)
        with contextlib.closing(client):
            yield client


def _require_ours(cloud: str, env: Mapping[str, str]) -> None:
    """AuthError where another could have written a file that the SDK reads: it may name a program
    to be run (``credential_process``).
    """
    for name, usual in _FILES.items():
        path, wrong = os.path.expanduser(env.get(name) or usual), None
        with contextlib.suppress(OSError):
            wrong = trust.flaw(path, trust.ours())
        if wrong:
            raise AuthError(cloud, "NoCredentials", wrong)


def _when(value: Any) -> datetime:  # noqa: ANN401 - any of the forms that botocore takes
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return parse_timestamp(value)


def _trim(model: Any) -> None:  # noqa: ANN401 - botocore has no types of its own
    """Botocore passes over what is in an answer but not in its model of it."""
    for operation, path in _INSTANCES.items():
        shape = model.operation_model(operation).output_shape
        for name in path:
            shape = shape.members[name].member
        _keep(shape.members, READ)
        _keep(shape.members["Placement"].members, READ_OF_PLACEMENT)


def _keep(members: dict[str, object], wanted: Iterable[str]) -> None:
    for name in members.keys() - set(wanted):
        del members[name]
