"""Amazon EC2, through boto3."""

from __future__ import annotations

from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.providers.aws.checks.validate import check
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.skeleton import SKELETON
from slurm_elastic.providers.base.later import later, opened

CLOUD = CloudKind(
    settings=AwsCloud,
    open=opened(f"{__name__}.provider:AwsProvider"),
    check=check,
    grant=later(f"{__name__}.checks.policy:grant"),
    known_types=later(f"{__name__}.known_types:known_types"),
    found=later(f"{__name__}.found:found"),
    images=later(f"{__name__}.image_store:AmiImages"),
    skeleton=SKELETON,
    maker=later(f"{__name__}.making.maker:AwsMaker"),
    spot_prices=later(f"{__name__}.spot_prices:spot_prices"),
    queue_client=later(f"{__name__}.service_client:queue_client"),
)
