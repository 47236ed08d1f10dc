"""botocore's exceptions as the five of ours: the one place where they are translated.

The codes: "Error codes for the Amazon EC2 API" of the EC2 API reference; which of them mean "no
machines now" follows what Karpenter (pkg/errors/errors.go: unfulfillableCapacityErrorCodes, and the
reasons it gives for a failed launch) and ParallelCluster (EC2_ICE_ERROR_CODES and its groups of
launch failures) treat so. A limit of the account is a QuotaError here, which those two count among
the former: another type in the same market would meet it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)

# Looked at before the HTTP status: EC2 answers InsufficientInstanceCapacity with a 500.
_CAPACITY = (
    "InsufficientAddressCapacity",
    "InsufficientCapacity",
    "InsufficientCapacityOnHost",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientHostCapacity",
    "InsufficientInstanceCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientVolumeCapacity",
    "LimitedInstanceCapacity",
    "ReservationCapacityExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "Unsupported",
)
_QUOTA = (
    "AddressLimitExceeded",
    # The account has no role for spot and may not make it: of the spot market only.
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
    "InstanceLimitExceeded",
    "MaxFleetCountExceeded",
    "MaxIOPSLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "NetworkInterfaceLimitExceeded",
    "PendingVerification",
    "VcpuLimitExceeded",
    "VolumeLimitExceeded",
)
_AUTH = (
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "Blocked",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "OptInRequired",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnauthorizedOperation",
    "UnrecognizedClientException",
)
THROTTLES = (
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
)
"""Calls that came too fast."""
_TRANSIENT = (
    *THROTTLES,
    "ConcurrentTagAccess",
    "InternalError",
    "InternalFailure",
    "PriorRequestNotComplete",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "Unavailable",
)
_CONFIG = (
    "IncorrectState",
    "InvalidAMIID.Malformed",
    "InvalidAMIID.NotFound",
    "InvalidAMIID.Unavailable",
    "InvalidBlockDeviceMapping",
    "InvalidGroup.NotFound",
    "InvalidInstanceType",
    "InvalidKeyPair.NotFound",
    "InvalidLaunchTemplateId.Malformed",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidParameter",
    "InvalidParameterCombination",
    "InvalidParameterValue",
    "InvalidSubnetID.NotFound",
    "InvalidSubnetId.NotFound",
    "InvalidUserData.Malformed",
    "InvalidZone.NotFound",
    "MissingParameter",
    "TagPolicyViolation",
    "UnknownParameter",
    "UnsupportedOperation",
    "ValidationError",
)
"""A thing that the settings ask for does not exist or does not go together: nothing was started."""
CODES: dict[str, type[ProviderError]] = {
    **dict.fromkeys(_CAPACITY, CapacityError),
    **dict.fromkeys(_QUOTA, QuotaError),
    **dict.fromkeys(_AUTH, AuthError),
    **dict.fromkeys(_TRANSIENT, TransientError),
    **dict.fromkeys(_CONFIG, ProviderError),
    "InvalidInstanceID.NotFound": InstanceNotFound,
    "InvalidInstanceID.Malformed": InstanceNotFound,
}

_UNAUTHORIZED = "UnauthorizedOperation"
"""The credentials are good, and lack the right to this very call."""
_LAUNCHES = ("RunInstances", "CreateFleet")
"""Which of these are granted may differ by market, type, zone and image."""
_RIGHT = re.compile(r"not authorized to perform:? (\w+:\w+)")
_OF_SPOT = ":spot-instances-request/"
_ENCODED = re.compile(r"\s*Encoded authorization failure message:.*", re.DOTALL)
"""After this comes a kilobyte for ``aws sts decode-authorization-message``."""
_BODY = re.compile(r":\n.*", re.DOTALL)
"""Botocore tells a body that it cannot read to its end, which may be a template's user data."""
_LONG = re.compile(r"[A-Za-z0-9+/=_-]{160,}")
"""Nothing that EC2 says is one word of this length; user data and tokens are."""

MISMATCH = "IdempotentParameterMismatch"
"""The client token was used before, with other parameters."""
NO_TEMPLATE = ("InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException")
TEMPLATE_EXISTS = "InvalidLaunchTemplateName.AlreadyExistsException"

_NO_CREDENTIALS = (
    ConfigNotFound,
    CredentialRetrievalError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
_NO_ANSWER = (NoConnectionError, HTTPClientError, IncompleteReadError, ResponseParserError)


@contextmanager
def translated(cloud: str) -> Iterator[None]:
    """Raise one of the five for what botocore raises inside; what is unknown stays as it is.

    Any other refusal that the cloud put into words (a wrong image, say) is a plain ProviderError:
    nothing was done. All but IdempotentParameterMismatch, where something was done before.
    """
    try:
        yield
    except ClientError as error:
        known = _from_answer(cloud, error)
        if known is None:
            raise
        raise known from error
    except _NO_CREDENTIALS as error:
        raise AuthError(cloud, type(error).__name__, sentence(error)) from error
    except _NO_ANSWER as error:
        raise TransientError(cloud, type(error).__name__, sentence(error)) from error


def _from_answer(cloud: str, error: ClientError) -> ProviderError | None:
    answer = error.response
    code = answer.get("Error", {}).get("Code", "")
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    text = answer.get("Error", {}).get("Message", "") or f"HTTP {status}"
    known = refusal(cloud, code, text, error.operation_name)
    if known is None and status >= 500:
        return TransientError(cloud, code, sentence(text))
    if known is None and 400 <= status < 500 and code != MISMATCH:
        return ProviderError(cloud, code, sentence(text))
    return known


def refusal(cloud: str, code: str, text: str, operation: str) -> ProviderError | None:
    """The meaning of a code that EC2 gives ``operation``; None of one that is not known."""
    kind = CODES.get(code)
    if kind is None:
        return None
    if code != _UNAUTHORIZED:
        return kind(cloud, code, sentence(text))
    right = _RIGHT.search(text)
    told = f"no right to {right[1] if right else f'ec2:{operation}'}: {sentence(text)}"
    if operation not in _LAUNCHES:
        return AuthError(cloud, code, told)
    return DeniedError(cloud, code, told, of_market=_OF_SPOT in text)


def sentence(error: BotoCoreError | Exception | str) -> str:
    """One line, without what is long: it is no use to anybody, and may be user data."""
    text = _BODY.sub("", _ENCODED.sub("", str(error)))
    return _LONG.sub("(left out)", " ".join(text.split())) or "no message"


def named(ids: Sequence[str], error: ProviderError) -> Sequence[str]:
    """The machines that an answer is about: the ones it names, or the only one."""
    return [i for i in ids if i in error.said] or (ids if len(ids) == 1 else ())
