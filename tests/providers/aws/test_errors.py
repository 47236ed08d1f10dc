"""Each code of EC2 and each complaint of botocore is one of the five, or stays what it is."""

from __future__ import annotations

import errno
import re

import botocore.exceptions as bc
import botocore.session
import pytest
from botocore.parsers import ResponseParserError, create_parser

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.providers.aws.errors import translated


def test_a_login_that_cannot_be_saved_is_no_doubtful_call() -> None:
    """Our units see homes read-only. Botocore saves a renewed token before it sends the request."""
    path = "/home/slurm/.aws/sso/cache/a0f1.json"
    with pytest.raises(AuthError, match="Read-only file system") as told, translated("aws"):
        raise OSError(errno.EROFS, "Read-only file system", path)
    assert path in told.value.full_message
    with pytest.raises(OSError, match="No space left"), translated("aws"):
        raise OSError(errno.ENOSPC, "No space left on device", "/var/lib/slurm-elastic/x")


def answered(
    code: str, status: int = 400, message: str = "because", operation: str = "RunInstances"
) -> bc.ClientError:
    return bc.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        operation,
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
    "UnauthorizedOperation": DeniedError,
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
    "UnauthorizedOperation": DeniedError,
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
    said = "no right to ec2:RunInstances: because" if kind is DeniedError else "because"
    assert (caught.value.cloud, caught.value.code, caught.value.message) == ("aws", code, said)
    assert isinstance(caught.value.__cause__, bc.ClientError)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("AuthFailure", "Not authorized for images: [ami-5287d500]"),
        (
            "OptInRequired",
            "In order to use this AWS Marketplace product you need to accept terms and subscribe.",
        ),
    ],
)
def test_an_image_that_we_may_not_use_is_no_fault_of_the_credentials(code: str, text: str) -> None:
    """Else one pool's image would keep all pools of the cloud from starting machines."""
    with pytest.raises(DeniedError, match=re.escape(text)) as caught, translated("aws"):
        raise answered(code, message=text)
    assert not caught.value.of_market
    with pytest.raises(AuthError) as caught, translated("aws"):
        raise answered(code, message=text, operation="DescribeInstances")
    assert not isinstance(caught.value, DeniedError)


LOGIN = (
    "LoginError",
    "LoginRefreshRequired",
    "LoginInsufficientPermissions",
    "LoginTokenLoadError",
)
"""Of the credentials of ``aws login``, since botocore 1.41."""


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
        (bc.ConfigParseError(path="~/.aws/config"), AuthError),
        (bc.InvalidConfigError(error_msg="source_profile has no credentials"), AuthError),
        (bc.InfiniteLoopConfigError(source_profile="p", visited_profiles=["p"]), AuthError),
        (bc.UnknownCredentialError(name="p"), AuthError),
        (bc.RefreshWithMFAUnsupportedError(), AuthError),
        (bc.MissingDependencyException(msg="botocore[crt]"), AuthError),
        (bc.NoAuthTokenError(), AuthError),
        *((getattr(bc, name)(error_msg="x"), AuthError) for name in LOGIN if hasattr(bc, name)),
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


EXPLAINED = (
    "You are not authorized to perform this operation. User: arn:aws:sts::123456789012:assumed-role/"
    "head/i-0123456789abcdef0 is not authorized to perform: {right} on resource: arn:aws:ec2:"
    "us-east-1:123456789012:{kind}/* with an explicit deny in a service control policy. "
    "Encoded authorization failure message: " + "eSXw4Wo0hG4JJKC-oLLZXFB0cWm" * 40
)


@pytest.mark.parametrize(
    ("operation", "right", "kind", "error", "of_market"),
    [
        ("RunInstances", "ec2:RunInstances", "instance", DeniedError, False),
        ("RunInstances", "ec2:RunInstances", "spot-instances-request", DeniedError, True),
        ("RunInstances", "iam:PassRole", "role", DeniedError, False),
        ("CreateFleet", "ec2:CreateFleet", "fleet", DeniedError, False),
        ("DescribeInstances", "ec2:DescribeInstances", "instance", AuthError, False),
        ("CreateLaunchTemplate", "ec2:CreateTags", "launch-template", AuthError, False),
    ],
)
def test_a_missing_right_is_named_and_of_a_launch_it_is_the_offers(
    operation: str, right: str, kind: str, error: type[AuthError], of_market: bool
) -> None:
    text = EXPLAINED.format(right=right, kind=kind)
    with pytest.raises(AuthError) as caught, translated("aws"):
        raise answered("UnauthorizedOperation", 403, text, operation)
    found = caught.value
    assert type(found) is error
    assert found.message.startswith(f"no right to {right}: You are not authorized")
    assert found.message.endswith("service control policy."), "nothing of the encoded message"
    assert getattr(found, "of_market", False) is of_market


def test_an_answer_that_cannot_be_read_is_not_told() -> None:
    """Botocore has all of it in its error: that of a launch template has its user data."""
    data = "IyEvYmluL3NoCg" * 500
    body = f"<DescribeLaunchTemplateVersionsResponse><userData>{data}</userData><item>" * 100
    session = botocore.session.get_session()
    model = session.get_service_model("ec2").operation_model("DescribeLaunchTemplateVersions")
    answer = {"body": body.encode(), "headers": {}, "status_code": 200}
    with pytest.raises(TransientError) as caught, translated("aws"):
        create_parser("ec2").parse(answer, model.output_shape)
    assert caught.value.code == "ResponseParserError"
    assert "Unable to parse response" in caught.value.message
    assert len(str(caught.value)) < 200
    assert "userData" not in str(caught.value)


def test_user_data_that_ec2_repeats_is_left_out() -> None:
    data = "H4sIAAAAAAAA/3NIzcnJVyjPL8pJAQBWsRdKCwAAAA" * 8
    with pytest.raises(ProviderError) as caught, translated("aws"):
        raise answered("InvalidUserData.Malformed", 400, f"Invalid user data: {data} is bad")
    assert caught.value.message == "Invalid user data: (left out) is bad"
