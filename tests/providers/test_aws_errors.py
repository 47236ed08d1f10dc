"""Each code of EC2 and each complaint of botocore is one of the five, or stays what it is."""

from __future__ import annotations

import botocore.exceptions as bc
import pytest
from botocore.parsers import ResponseParserError

from slurm_elastic.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.providers.aws_errors import translated


def answered(code: str, status: int = 400, message: str = "because") -> bc.ClientError:
    return bc.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "RunInstances",
    )


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, CapacityError),
        ("InsufficientHostCapacity", 500, CapacityError),
        ("InsufficientReservedInstanceCapacity", 400, CapacityError),
        ("InsufficientFreeAddressesInSubnet", 400, CapacityError),
        ("Unsupported", 400, CapacityError),
        ("SpotMaxPriceTooLow", 400, CapacityError),
        ("ReservationCapacityExceeded", 400, CapacityError),
        ("UnfulfillableCapacity", 400, CapacityError),
        ("MaxSpotInstanceCountExceeded", 400, QuotaError),
        ("VcpuLimitExceeded", 400, QuotaError),
        ("InstanceLimitExceeded", 400, QuotaError),
        ("RequestLimitExceeded", 503, TransientError),
        ("Throttling", 400, TransientError),
        ("ThrottlingException", 400, TransientError),
        ("InternalError", 500, TransientError),
        ("ServiceUnavailable", 503, TransientError),
        ("SomethingNew", 502, TransientError),
        ("AuthFailure", 401, AuthError),
        ("UnauthorizedOperation", 403, AuthError),
        ("ExpiredToken", 400, AuthError),
        ("InvalidClientTokenId", 403, AuthError),
        ("OptInRequired", 401, AuthError),
        ("InvalidInstanceID.NotFound", 400, InstanceNotFound),
        ("InvalidInstanceID.Malformed", 400, InstanceNotFound),
        ("InvalidAMIID.NotFound", 400, ProviderError),
    ],
)
def test_answers(code: str, status: int, kind: type[ProviderError]) -> None:
    with pytest.raises(ProviderError) as caught, translated("aws"):
        raise answered(code, status)
    assert type(caught.value) is kind
    assert (caught.value.cloud, caught.value.code, caught.value.message) == ("aws", code, "because")
    assert isinstance(caught.value.__cause__, bc.ClientError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (bc.EndpointConnectionError(endpoint_url="http://x"), TransientError),
        (bc.ConnectTimeoutError(endpoint_url="http://x"), TransientError),
        (bc.ReadTimeoutError(endpoint_url="http://x"), TransientError),
        (bc.ConnectionClosedError(endpoint_url="http://x"), TransientError),
        (bc.ProxyConnectionError(proxy_url="http://x"), TransientError),
        (bc.SSLError(endpoint_url="http://x", error="bad"), TransientError),
        (bc.IncompleteReadError(actual_bytes=1, expected_bytes=2), TransientError),
        (ResponseParserError("not XML"), TransientError),
        (bc.NoCredentialsError(), AuthError),
        (bc.PartialCredentialsError(provider="env", cred_var="x"), AuthError),
        (bc.CredentialRetrievalError(provider="p", error_msg="x"), AuthError),
        (bc.ProfileNotFound(profile="p"), AuthError),
        (bc.TokenRetrievalError(provider="p", error_msg="x"), AuthError),
        (bc.UnauthorizedSSOTokenError(), AuthError),
    ],
)
def test_complaints_of_the_sdk(error: Exception, kind: type[ProviderError]) -> None:
    with pytest.raises(kind) as caught, translated("aws"):
        raise error
    assert caught.value.code == type(error).__name__


@pytest.mark.parametrize(
    "error",
    [
        answered("IdempotentParameterMismatch"),
        bc.ParamValidationError(report="a mistake of ours"),
        KeyError("anything else"),
    ],
)
def test_what_is_unknown_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, translated("aws"):
        raise error
    assert caught.value is error
