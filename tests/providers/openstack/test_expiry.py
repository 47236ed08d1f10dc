"""When credentials of OpenStack end, by keystone's word."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import yaml
from providers.openstack.bed import StackBed

from slurm_elastic.base.errors import AuthError
from slurm_elastic.model.protocols import Expiring

ENDS = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC).timestamp()


def ends(bed: StackBed) -> float | None:
    provider = bed.open()
    assert isinstance(provider, Expiring)
    return provider.credentials_end()


def test_a_password_has_the_end_that_keystone_gives_it(bed: StackBed) -> None:
    assert ends(bed) is None
    bed.world.password_ends = "2031-05-04T03:02:01.000000"
    assert ends(bed) == ENDS


def test_of_an_application_credential(bed: StackBed) -> None:
    bed.login_by_credential()
    assert ends(bed) is None
    bed.world.credential_ends = "2031-05-04T03:02:01.000000"
    assert ends(bed) == ENDS


def test_a_refused_look_at_the_credential_is_not_an_endless_one(bed: StackBed) -> None:
    """An application credential whose access rules lack keystone."""
    bed.login_by_credential()
    bed.world.credential_ends = "2031-05-04T03:02:01.000000"
    bed.stand_in.refuse(403, "not authorized", "GET /v3/users/u/application_credentials/*")
    with pytest.raises(AuthError, match="not authorized"):
        ends(bed)


def test_a_refusal_is_one(bed: StackBed) -> None:
    bed.login_by_credential("another")
    with pytest.raises(AuthError):
        ends(bed)


def test_a_token_ends_with_itself(bed: StackBed) -> None:
    auth = {"auth_url": f"{bed.stand_in.url}/v3", "token": "t", "project_name": "hpc"}
    auth["project_domain_id"] = "default"
    entry = {"auth": auth, "auth_type": "v3token", "region_name": "here"}
    bed.file.write_text(yaml.safe_dump({"clouds": {"hpc": entry}}))
    assert ends(bed) == datetime(2036, 1, 1, tzinfo=UTC).timestamp()
