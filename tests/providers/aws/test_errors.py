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
from slurm_elastic.providers.aws.errors import translated


def answered(code: str, status: int = 400, message: str = "because") -> bc.ClientError:
    return bc.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "RunInstances",
    )


# Karpenter's pkg/errors/errors.go (unfulfillable capacity, and reasons of a failed launch).
KARPENTER = {
    "InsufficientInstanceCapacity": CapacityError,
    "InsufficientFreeAddressesInSubnet": CapacityError,
    "ReservationCapacityExceeded": CapacityError,
    "UnfulfillableCapacity": CapacityError,
    "Unsupported": CapacityError,
    "MaxFleetCountExceeded": QuotaError,
    "MaxSpotInstanceCountExceeded": QuotaError,
    "PendingVerification": QuotaError,
    "VcpuLimitExceeded": QuotaError,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": QuotaError,
    "AccessDenied": AuthError,
    "AccessDeniedException": AuthError,
    "AuthFailure": AuthError,
    "UnauthorizedOperation": AuthError,
    "InternalError": TransientError,
    "RequestLimitExceeded": TransientError,
    "InvalidAMIID.Malformed": ProviderError,
    "InvalidAMIID.NotFound": ProviderError,
    "InvalidLaunchTemplateId.NotFound": ProviderError,
    "InvalidLaunchTemplateName.NotFoundException": ProviderError,
    "InvalidParameter": ProviderError,
    "InvalidParameterValue": ProviderError,
    "InvalidInstanceID.NotFound": InstanceNotFound,
}
# ParallelCluster's EC2_ICE_ERROR_CODES and its groups of launch failures.
PARALLELCLUSTER = {
    "InsufficientHostCapacity": CapacityError,
    "InsufficientInstanceCapacity": CapacityError,
    "InsufficientReservedInstanceCapacity": CapacityError,
    "InsufficientVolumeCapacity": CapacityError,
    "LimitedInstanceCapacity": CapacityError,
    "SpotMaxPriceTooLow": CapacityError,
    "UnfulfillableCapacity": CapacityError,
    "Unsupported": CapacityError,
    "MaxSpotInstanceCountExceeded": QuotaError,
    "VcpuLimitExceeded": QuotaError,
    "VolumeLimitExceeded": QuotaError,
    "UnauthorizedOperation": AuthError,
    "RequestLimitExceeded": TransientError,
}
OTHERS = {
    "InstanceLimitExceeded": QuotaError,
    "ExpiredToken": AuthError,
    "InvalidClientTokenId": AuthError,
    "OptInRequired": AuthError,
    "Throttling": TransientError,
    "ThrottlingException": TransientError,
    "ServiceUnavailable": TransientError,
    "InvalidGroup.NotFound": ProviderError,
    "InvalidSubnetID.NotFound": ProviderError,
    "ACodeOfTomorrow": ProviderError,
    "InvalidInstanceID.Malformed": InstanceNotFound,
}


@pytest.mark.parametrize(
    ("code", "kind"), sorted({**KARPENTER, **PARALLELCLUSTER, **OTHERS}.items())
)
@pytest.mark.parametrize("status", [400, 403, 500, 503])
def test_answers(code: str, status: int, kind: type[ProviderError]) -> None:
    """The code decides: EC2 answers a lack of capacity with a 500. Only an unknown one goes by it."""
    if code == "ACodeOfTomorrow" and status >= 500:
        kind = TransientError
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
