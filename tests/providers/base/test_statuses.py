"""An HTTP status, and what little an API says beside it, as one of our errors."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.providers.base.statuses import THROTTLED, error_of_status


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "no such flavor", ProviderError),
        (401, "", AuthError),
        (403, "forbidden", AuthError),
        (404, "", InstanceNotFound),
        (407, "", AuthError),
        (408, "", TransientError),
        (409, "conflict", ProviderError),
        (410, "", InstanceNotFound),
        (425, "", TransientError),
        (429, "limit of calls exceeded", TransientError),
        (499, "", ProviderError),
        (500, "quota exceeded", TransientError),
        (503, "no capacity", TransientError),
        (403, "Quota exceeded for cores", QuotaError),
        (400, "the limit of 5 machines is exceeded", QuotaError),
        (400, "this exceeds the limit of 5", QuotaError),
        (400, "the limit of 5 machines", ProviderError),
        (409, "No valid host was found", CapacityError),
        (409, "the zone has no Capacity", CapacityError),
        (400, "sold out", CapacityError),
        (400, "out of stock", CapacityError),
        (400, "incapacity", ProviderError),
    ],
)
def test_an_answer_is_one_of_the_five(status: int, message: str, kind: type[ProviderError]) -> None:
    found = error_of_status("c", status, message)
    assert type(found) is kind
    assert (found.code, found.message) == (f"HTTP{status}", message)


def test_a_throttle_goes_by_its_name() -> None:
    assert error_of_status("c", 429, "").code == THROTTLED
