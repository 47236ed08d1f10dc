"""When credentials of OpenStack end, by keystone's word."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import yaml
from providers.openstack.bed import StackBed
from providers.openstack.stand_in import PASSWORD

from slurm_elastic.base.errors import AuthError
from slurm_elastic.model.protocols import Expiring

ENDS = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC).timestamp()


def ends(bed: StackBed) -> float | None:
    provider = bed.open()
    assert isinstance(provider, Expiring)
    return provider.credentials_end()


def credential(bed: StackBed, secret: str = PASSWORD) -> None:
    auth = {
        "auth_url": f"{bed.stand_in.url}/v3",
        "application_credential_id": "ac",
        "application_credential_secret": secret,
    }
    entry = {"auth": auth, "auth_type": "v3applicationcredential", "region_name": "here"}
    bed.file.write_text(yaml.safe_dump({"clouds": {"hpc": entry}}))


def test_a_password_has_the_end_that_keystone_gives_it(bed: StackBed) -> None:
    assert ends(bed) is None
    bed.world.password_ends = "2031-05-04T03:02:01.000000"
    assert ends(bed) == ENDS


def test_of_an_application_credential(bed: StackBed) -> None:
    credential(bed)
    assert ends(bed) is None
    bed.world.credential_ends = "2031-05-04T03:02:01.000000"
    assert ends(bed) == ENDS


def test_a_refusal_is_one(bed: StackBed) -> None:
    credential(bed, "another")
    with pytest.raises(AuthError):
        ends(bed)


def test_a_token_ends_with_itself(bed: StackBed) -> None:
    auth = {"auth_url": f"{bed.stand_in.url}/v3", "token": "t", "project_name": "hpc"}
    auth["project_domain_id"] = "default"
    entry = {"auth": auth, "auth_type": "v3token", "region_name": "here"}
    bed.file.write_text(yaml.safe_dump({"clouds": {"hpc": entry}}))
    assert ends(bed) == datetime(2036, 1, 1, tzinfo=UTC).timestamp()
