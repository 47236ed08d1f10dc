"""Checks by dry runs whether the account may make the calls that launches need. Nothing is changed.

EC2 checks the rights of a call with ``DryRun``. It answers DryRunOperation if they suffice and
UnauthorizedOperation if they do not (EC2 API reference, "Common query parameters").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field, structs

from slurm_elastic.base.errors import AuthError, InstanceNotFound, ProviderError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec, Market, Offer, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.machine_options import CLUSTER_GROUP, NO_OPTIONS
from slurm_elastic.providers.aws import requests
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.errors import NO_TEMPLATE
from slurm_elastic.providers.aws.hardware import NO_FACTS, HardwareFacts, for_pool, uses_fleets
from slurm_elastic.providers.aws.placement import creation
from slurm_elastic.providers.aws.settings import AwsCloud, Strategy
from slurm_elastic.providers.aws.tags import PLACE
from slurm_elastic.providers.aws.templates import static_tags, template_data
from slurm_elastic.providers.base.parallel import each

GRANTED = "DryRunOperation"
_NO_MACHINE = "i-00000000000000000"
_NAME = "slurm-elastic-doctor"
_AT_ONCE = 4
"""The number of dry runs at the same time."""


class Attempt(Struct, frozen=True, kw_only=True):
    """A call to try: boto3's ``operation``, and the ``action`` as policies name it.

    ``unsure``: there is no machine of ours to name, so a policy by tags refuses the call in any
    case. ``optional``: what stops working without the right; empty if launches need it.
    """

    operation: str
    action: str
    request: Mapping[str, object] = field(default_factory=dict)
    note: str = ""
    unsure: bool = False
    optional: str = ""

    @property
    def shown(self) -> str:
        """The call for people."""
        return f"{self.action} ({self.note})" if self.note else self.action


class DryLaunch(Struct, frozen=True, kw_only=True):
    """A launch of one machine from ``image``, never carried out."""

    spec: LaunchSpec
    image: str
    facts: HardwareFacts = NO_FACTS


def examine(api: AwsApi, attempts: Iterable[Attempt]) -> Iterator[Finding]:
    """A finding for each refused call, and one for all granted calls."""
    remaining = iter(attempts)
    read_attempt = next(remaining, None)
    if read_attempt is None:
        return
    # The first attempt only reads. A service that ignores ``DryRun`` would carry out the other
    # calls and end a machine, so they are tried only if the first one was answered as a dry run.
    if (finding := _try(api, read_attempt)) is not None:
        yield finding
        finding_text = (
            f"no other right is tried: {read_attempt.shown} was not answered as a dry run"
        )
        yield Finding.note("rights", finding_text, advice="correct that first")
        return
    further = list(remaining)
    # Some at a time, because a dry run of a launch may take ten seconds.
    answers = each(further, lambda attempt: _try(api, attempt), _AT_ONCE)
    findings = [answer.result() for answer in answers]
    yield from (finding for finding in findings if finding is not None)
    granted = [a.shown for a, finding in zip(further, findings, strict=True) if finding is None]
    yield Finding.ok("rights", f"granted: {', '.join([read_attempt.shown, *granted])}")


def _try(api: AwsApi, attempt: Attempt) -> Finding | None:
    """The finding about one call, or None if the right is granted."""
    subject = f"right to {attempt.shown}"
    try:
        api.send(attempt.operation, {**attempt.request, "DryRun": True})
    except AuthError as error:
        return _refused(subject, attempt, error)
    except InstanceNotFound:
        return None  # EC2 checks rights before it looks for the machine
    except TransientError as error:
        return Finding.note(subject, error.refusal, advice="ask again later")
    except ProviderError as error:
        if error.code == GRANTED:
            return None
        if error.code in NO_TEMPLATE:
            # Our templates are created by the first launch, and EC2 must read a template to know
            # which rights are needed.
            advice = "look again when a machine has been launched"
            return Finding.note(subject, error.refusal, advice=advice)
        advice = "correct the cloud's settings that it names"
        return Finding.wrong(subject, error.refusal, advice=advice)
    text = "answered as if it had been carried out: this service does not support dry runs"
    return Finding.note(subject, text)


def _refused(subject: str, attempt: Attempt, error: ProviderError) -> Finding:
    finding = f"refused: {error.refusal}"
    allow = f"allow ec2:{attempt.action} to the daemon's credentials (slurm-elastic iam render aws)"
    if attempt.optional:
        return Finding.note(subject, finding, advice=f"{allow}; without it {attempt.optional}")
    if attempt.unsure:
        finding = f"{finding} (tried on a machine that does not exist, because we have none now)"
        advice = "expected if the policy requires our tags: look again when a machine runs"
        return Finding.note(subject, finding, advice=advice)
    return Finding.wrong(subject, finding, "the right to it", allow)


def attempts(
    settings: AwsCloud,
    cluster: Cluster,
    pools: Sequence[Pool],
    launches: Iterable[DryLaunch],
    machine: str | None,
) -> Iterator[Attempt]:
    """The rights that launching, listing and ending need. ``launches``: one for each market in use.
    ``machine``: the id of a machine of ours.
    """
    spot = any(Market.SPOT in pool.markets for pool in pools)
    yield from _reads(settings, spot)
    if any(pool.image is not None and pool.image.id is None for pool in pools):
        request = {"Owners": list(settings.image_owners)}
        yield Attempt(operation="describe_images", action="DescribeImages", request=request)
    for launch in launches:
        pool_settings = for_pool(settings, launch.spec.pool)
        image_settings = structs.replace(pool_settings, image=launch.image)
        yield from _launches(image_settings, cluster, launch.spec, launch.facts)
    yield from _groups(settings, cluster, pools)
    ids = [machine or _NO_MACHINE]
    yield Attempt(
        operation="terminate_instances",
        action="TerminateInstances",
        request={"InstanceIds": ids},
        unsure=machine is None,
    )
    if any(pool.stopped for pool in pools):
        yield from _stops(ids, unsure=machine is None)
    if uses_fleets(settings, pools):
        yield Attempt(
            operation="create_tags",
            action="CreateTags",
            note="of running machines",
            request={"Resources": ids, "Tags": [{"Key": f"{PLACE}0", "Value": "0"}]},
            unsure=machine is None,
        )
    yield Attempt(
        operation="get_console_output",
        action="GetConsoleOutput",
        request={"InstanceId": ids[0]},
        optional="explain shows no console of a failed boot; join.ssh cannot read host keys there",
    )


def _stops(ids: Sequence[str], *, unsure: bool) -> Iterator[Attempt]:
    request = {"InstanceIds": list(ids)}
    consequence = "idle machines end instead of being stopped"
    for verb in ("Stop", "Start"):
        yield Attempt(
            operation=f"{verb.lower()}_instances", action=f"{verb}Instances", request=request,
            unsure=unsure, optional="" if unsure else consequence,
        )  # fmt: skip


def _reads(settings: AwsCloud, spot: bool) -> Iterator[Attempt]:
    yield Attempt(operation="describe_instances", action="DescribeInstances")
    yield Attempt(
        operation="describe_instance_status",
        action="DescribeInstanceStatus",
        optional="maintenance that EC2 has scheduled is no notice",
    )
    if not (settings.zones or settings.subnets):
        yield Attempt(operation="describe_availability_zones", action="DescribeAvailabilityZones")
    if spot:
        yield Attempt(operation="describe_spot_price_history", action="DescribeSpotPriceHistory")
        yield Attempt(
            operation="describe_spot_instance_requests", action="DescribeSpotInstanceRequests"
        )


def _groups(settings: AwsCloud, cluster: Cluster, pools: Sequence[Pool]) -> Iterator[Attempt]:
    for pool in pools:
        if pool.machine.placement_group == CLUSTER_GROUP:
            request = creation(settings, cluster, pool)
            yield Attempt(
                operation="create_placement_group", action="CreatePlacementGroup", request=request
            )
            return


def _launches(
    settings: AwsCloud, cluster: Cluster, spec: LaunchSpec, facts: HardwareFacts
) -> Iterator[Attempt]:
    """The real request of a launch, with tags and instance profile, but without user data and
    client token.
    """
    market = spec.offer.market.value
    if spec.pool.machine != NO_OPTIONS:
        market = f"{market}, pool {spec.pool.name}"
    node = spec.nodes[:1]
    run = requests.run_instances(settings, cluster, spec, node, number=0, parts=(), facts=facts)
    if spec.pool.machine.placement_group == CLUSTER_GROUP:
        # The first launch makes the group. Until then EC2 refuses its name.
        del run["Placement"]["GroupName"]
    del run["ClientToken"]
    yield Attempt(operation="run_instances", action="RunInstances", note=market, request=run)
    if settings.strategy is not Strategy.FLEET or spec.pool.machine.rdma:
        return
    fleet = requests.create_fleet(
        settings, cluster, spec, node, template=_NAME, number=0, attempt=0
    )
    del fleet["ClientToken"]
    yield Attempt(operation="create_fleet", action="CreateFleet", note=market, request=fleet)
    yield Attempt(operation="describe_fleets", action="DescribeFleets")
    data = template_data(settings, cluster, spec, (), facts)
    tags = requests.tag_list(static_tags(cluster, settings, spec))
    yield Attempt(
        operation="create_launch_template",
        action="CreateLaunchTemplate",
        note=market,
        request={
            "LaunchTemplateName": _NAME,
            "LaunchTemplateData": data,
            "TagSpecifications": [{"ResourceType": "launch-template", "Tags": tags}],
        },
    )
    if settings.launch_template is not None:
        template = requests.site_template(settings.launch_template)
        request: dict[str, object] = {**template, "Versions": [template["Version"]]}
        del request["Version"]
        yield Attempt(
            operation="describe_launch_template_versions",
            action="DescribeLaunchTemplateVersions",
            request=request,
        )


def trial(pool: Pool, offer: Offer) -> LaunchSpec:
    """A launch of one machine, never carried out."""
    return LaunchSpec(generation=_NAME, pool=pool, nodes=pool.nodes[:1], offer=offer)
