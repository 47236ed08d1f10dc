"""Translates botocore's exceptions into our errors; no other module does this.

The codes are from "Error codes for the Amazon EC2 API" in the EC2 API reference. The list of codes
that mean "no machines now" follows Karpenter (pkg/errors/errors.go:
unfulfillableCapacityErrorCodes, and its reasons for a failed launch) and ParallelCluster
(EC2_ICE_ERROR_CODES and its groups of launch failures). There is one difference: a limit of the
account is a QuotaError here, because another type in the same market would meet the same limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from botocore import exceptions as botocore_exceptions
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    InvalidConfigError,
    MetadataRetrievalError,
    MissingDependencyException,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
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
from slurm_elastic.base.pages import page
from slurm_elastic.providers.base import errors

# Checked before the HTTP status, because EC2 answers InsufficientInstanceCapacity with a 500.
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
    # The account has no role for spot and may not create it. Only the spot market is affected.
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
_NOT_OF_SIZE = (
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
    "MaxFleetCountExceeded",
    "PendingVerification",
)
"""The account gets these codes also for a call for one machine."""
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
"""Calls were sent too fast."""
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
"""A thing that the settings ask for does not exist or does not fit the rest. Nothing was
started.
"""
CODES: dict[str, type[ProviderError]] = {
    **dict.fromkeys(_CAPACITY, CapacityError),
    **dict.fromkeys(_QUOTA, QuotaError),
    **dict.fromkeys(_AUTH, AuthError),
    **dict.fromkeys(_TRANSIENT, TransientError),
    **dict.fromkeys(_CONFIG, ProviderError),
    "InvalidInstanceID.NotFound": InstanceNotFound,
    "InvalidInstanceID.Malformed": InstanceNotFound,
}

UNAUTHORIZED = "UnauthorizedOperation"
"""The credentials are good, but lack the right to this call."""
_LAUNCHES = ("RunInstances", "CreateFleet", "CreatePlacementGroup")
"""The right to launch may differ by market, type, zone and image, so these get a DeniedError. Only
launches of one pool make its placement group.
"""
_OF_IMAGE = {
    "AuthFailure": "Not authorized for images",
    "OptInRequired": "AWS Marketplace product",
}
"""The texts by which these codes are about the image alone: it is private, no longer exists, or its
terms are not accepted. The credentials are good, and other images can be used.
"""
_RIGHT = re.compile(r"not authorized to perform:? (\w+:\w+)")
_OF_SPOT = ":spot-instances-request/"
_ENCODED = re.compile(r"\s*Encoded authorization failure message:.*", re.DOTALL)
"""A kilobyte for ``aws sts decode-authorization-message``."""
_BODY = re.compile(r":\n.*", re.DOTALL)
"""Botocore quotes a response that it cannot parse to the end. The response may contain a template's
user data.
"""
_LONG = re.compile(r"[A-Za-z0-9+/=_-]{160,}")
"""No word in EC2's messages is this long, but user data and tokens are."""

MISMATCH = "IdempotentParameterMismatch"
"""The client token was used before with other parameters."""
NO_TEMPLATE = ("InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException")
TEMPLATE_EXISTS = "InvalidLaunchTemplateName.AlreadyExistsException"

_NO_CREDENTIALS: tuple[type[Exception], ...] = (
    ConfigNotFound,
    ConfigParseError,
    CredentialRetrievalError,
    InvalidConfigError,
    MetadataRetrievalError,
    MissingDependencyException,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
    # ``aws login``. Releases of botocore before 1.41 do not know it.
    *filter(None, [getattr(botocore_exceptions, "LoginError", None)]),
)
"""Botocore raises these errors before it sends a request. If this list lacks such an error, a
launch that meets it stays in doubt, as if the request might have taken effect.
"""
_NO_ANSWER = (NoConnectionError, HTTPClientError, IncompleteReadError, ResponseParserError)


@contextmanager
def translated(cloud: str) -> Iterator[None]:
    """Raise our error for an exception of botocore raised inside. Unknown exceptions stay
    unchanged.

    Any other refusal (a wrong image, say) becomes a plain ProviderError, because nothing was done.
    IdempotentParameterMismatch is the exception: an earlier call with this token did something.
    """
    try:
        yield
    except ClientError as error:
        provider_error = _from_answer(cloud, error)
        if provider_error is None:
            raise
        raise provider_error from error
    except _NO_CREDENTIALS as error:
        raise AuthError(cloud, type(error).__name__, sentence(error)) from error
    except _NO_ANSWER as error:
        raise TransientError(cloud, type(error).__name__, sentence(error)) from error
    except OSError as error:
        if not _is_of_login(error):
            raise
        text = f"the renewed login cannot be kept: {error}; let the units write there"
        raise AuthError(cloud, "LoginNotKept", f"{text} ({page('aws')})") from error


def _is_of_login(error: OSError) -> bool:
    """Whether a file below ``~/.aws`` cannot be read or written, such as the token of ``aws sso
    login``, which botocore renews and saves before it signs a request. So no request was sent.
    """
    return isinstance(error.filename, str) and ".aws" in Path(error.filename).parts


def _from_answer(cloud: str, error: ClientError) -> ProviderError | None:
    answer = error.response
    code = answer.get("Error", {}).get("Code", "")
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    text = answer.get("Error", {}).get("Message", "") or f"HTTP {status}"
    provider_error = refusal(cloud, code, text, error.operation_name)
    if provider_error is None and status >= 500:
        return TransientError(cloud, code, sentence(text))
    # A mismatch is the one refusal after which machines may exist (see ``instances.earlier``).
    if provider_error is None and 400 <= status < 500 and code != MISMATCH:
        return ProviderError(cloud, code, sentence(text))
    return provider_error


def refusal(cloud: str, code: str, text: str, operation: str) -> ProviderError | None:
    """The error for a code that EC2 gives in answer to ``operation``; None if the code is
    unknown.
    """
    kind = CODES.get(code)
    if kind is None:
        return None
    if operation in _LAUNCHES and code in _OF_IMAGE and _OF_IMAGE[code] in text:
        return DeniedError(cloud, code, sentence(text))
    if code != UNAUTHORIZED:
        return kind(cloud, code, sentence(text))
    right = _RIGHT.search(text)
    explanation = f"no right to {right[1] if right else f'ec2:{operation}'}: {sentence(text)}"
    if operation not in _LAUNCHES:
        return AuthError(cloud, code, explanation)
    return DeniedError(cloud, code, explanation, of_market=_OF_SPOT in text)


def of_whole_call(error: ProviderError, least: int) -> ProviderError:
    """See ``providers.base.errors.of_whole_call``."""
    return error if error.code in _NOT_OF_SIZE else errors.of_whole_call(error, least)


def is_lack_of_resources(message: str) -> bool:
    """Whether EC2 rejected the call because the bucket of machines was empty."""
    return "resource" in message.lower()


def sentence(error: BotoCoreError | Exception | str) -> str:
    """The error as one line. Long words are left out, because they do not help and may be user
    data.
    """
    text = _BODY.sub("", _ENCODED.sub("", str(error)))
    return _LONG.sub("(left out)", " ".join(text.split())) or "no message"


def blamed_ids(ids: Sequence[str], error: ProviderError) -> Sequence[str]:
    """The machines that the error's text names, or the only machine of the call."""
    return [i for i in ids if i in error.full_message] or (ids if len(ids) == 1 else ())
