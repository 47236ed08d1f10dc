"""Our own checkpoint and release policies pass the suites that policies of other packages pass."""

from __future__ import annotations

import pytest

from slurm_elastic.config.checkpoint_kinds import checked_policy
from slurm_elastic.config.release_kinds import checked_release
from slurm_elastic.policies.checkpoint.checkpoint import MAKERS, AnyPolicy
from slurm_elastic.policies.growth.release import RELEASE, AnyRelease
from slurm_elastic.testing.release import ReleaseContract
from slurm_elastic.testing.save_policy import SavePolicyContract

SAVING = [name for name in MAKERS if name != "first_of"]


class TestCheckpointPolicies(SavePolicyContract):
    @pytest.fixture(params=[*SAVING, "first_of(on_notice, daly)", "hour(every=7200)"])
    def policy(self, request: pytest.FixtureRequest) -> AnyPolicy:
        return checked_policy(request.param)


class TestReleasePolicies(ReleaseContract):
    @pytest.fixture(params=[*RELEASE, "idle(seconds=0)", "delayed(before_end=60)"])
    def policy(self, request: pytest.FixtureRequest) -> AnyRelease:
        return checked_release(request.param)
