"""Sends the requests of ``init --make`` to EC2, IAM and STS. A request is repeated only after a
refusal because of too many requests: otherwise the first one may have created something.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import AuthError, ProviderError
from slurm_elastic.config.site_place import SitePlace
from slurm_elastic.model.site_resources import MADE_BY, SiteResource
from slurm_elastic.providers.aws.client import MAX_PAGES, plain_client
from slurm_elastic.providers.aws.errors import THROTTLES, translated
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER, NAME, PREFIX

MADE_BY_TAG = PREFIX + "made-by"
PART_TAG = PREFIX + "part"
DIGEST_TAG = PREFIX + "made-as"
_MAX_RETRIES = 5
_PAUSES = Backoff(1.0, 10.0)
_NO_RIGHT = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
GONE = ("NotFound", "NoSuchEntity", "NotAttached", "NotFoundException")
"""Each is the end of a code that means that a resource does not exist."""


class Calls:
    """The clients of one account. Not thread-safe."""

    def __init__(self, settings: AwsCloud) -> None:
        self._settings = settings
        self._clients: dict[str, Any] = {}

    def ec2(self, operation: str, **request: object) -> Mapping[str, Any]:
        """Send a request to EC2. ``operation`` is boto3's name of the request."""
        answer: Mapping[str, Any] = self._send("ec2", operation, request)
        return answer

    def iam(self, operation: str, **request: object) -> Mapping[str, Any]:
        """Send a request to IAM."""
        answer: Mapping[str, Any] = self._send("iam", operation, request)
        return answer

    def account(self) -> str:
        """The number of the account. It needs no right."""
        return str(self._send("sts", "get_caller_identity", {})["Account"])

    def all_of(self, operation: str, key: str, **request: object) -> Iterator[Mapping[str, Any]]:
        """The items of all pages of an answer of EC2."""
        token: object = None
        for _ in range(MAX_PAGES):
            more = {"NextToken": token} if token else {}
            answer = self.ec2(operation, **request, **more)
            yield from answer.get(key, ())
            token = answer.get("NextToken")
            if not token:
                return

    def iam_or_none(self, operation: str, **request: object) -> Mapping[str, Any] | None:
        """The answer of IAM, or None if there is no such role or profile."""
        try:
            return self.iam(operation, **request)
        except ProviderError as error:
            if is_gone(error):
                return None
            raise

    def _send(self, service: str, operation: str, request: Mapping[str, object]) -> Any:  # noqa: ANN401
        retries = 0
        while True:
            try:
                with translated(self._settings.name):
                    return getattr(self._client(service), operation)(**request)
            except AuthError as error:
                if error.code not in _NO_RIGHT:
                    raise
                action = "".join(word.capitalize() for word in operation.split("_"))
                raise AuthError(
                    self._settings.name, error.code, f"the right {service}:{action} is missing "
                    "(`slurm-elastic iam render aws --for make` prints all that are needed)",
                ) from error  # fmt: skip
            except ProviderError as error:
                if error.code not in THROTTLES or retries == _MAX_RETRIES:
                    raise
            retries += 1
            # Random, so that calls that were refused together do not come again together.
            time.sleep(random.uniform(0.5, 1.0) * _PAUSES.after(retries))  # noqa: S311

    def _client(self, service: str) -> Any:  # noqa: ANN401
        if service not in self._clients:
            settings = self._settings
            # attempts=1: the loop above repeats throttled calls alone. A repeated create might make
            # a second resource.
            self._clients[service] = plain_client(settings, service, settings.region, attempts=1)
        return self._clients[service]


def is_gone(error: ProviderError) -> bool:
    """Whether the error means that the resource is not there."""
    return error.code.rpartition(".")[2] in GONE


class Marks(Struct, frozen=True):
    """The tags that say that a resource is ours."""

    cluster: str
    cluster_name: str
    cloud: str

    def of(self, resource: SiteResource) -> dict[str, str]:
        """All tags of a new resource."""
        return {
            "Name": resource.name,
            CLUSTER: self.cluster,
            NAME: self.cluster_name,
            CLOUD: self.cloud,
            MADE_BY_TAG: MADE_BY,
            PART_TAG: resource.key,
            DIGEST_TAG: resource.digest,
        }

    def are_on(self, tags: Mapping[str, str]) -> bool:
        """Whether a resource with these tags was made by us, for this cluster and cloud."""
        ours = {CLUSTER: self.cluster, CLOUD: self.cloud, MADE_BY_TAG: MADE_BY}
        return ours.items() <= tags.items() and bool(tags.get(PART_TAG))

    @property
    def filters(self) -> list[dict[str, object]]:
        """The filter of EC2's Describe calls for resources of ours."""
        ours = {CLUSTER: self.cluster, CLOUD: self.cloud, MADE_BY_TAG: MADE_BY}
        return [{"Name": f"tag:{key}", "Values": [value]} for key, value in ours.items()]


def marks_of(settings: AwsCloud, place: SitePlace) -> Marks:
    """The marks of a cloud's resources."""
    cluster = place.cluster
    return Marks(cluster.uuid or "", cluster.name, settings.name)


def tags_in(record: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a record."""
    return {tag["Key"]: tag["Value"] for tag in record.get("Tags", ())}
