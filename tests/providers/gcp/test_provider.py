"""The gcp provider where the contract says nothing: tokens, requests, refusals, notices, doctor."""

from __future__ import annotations

import ast
import base64
import http.server
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from providers.gcp.bed import BULK, ZONES, GcpBed, write_key

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.redaction import redacted
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import InstanceState, LaunchSpec, Market
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.model.machine_options import Disk, MachineOptions
from slurm_elastic.model.protocols import list_tidily
from slurm_elastic.model.reserved import ReservationKind
from slurm_elastic.providers.base.user_data import program
from slurm_elastic.providers.gcp import errors, requests
from slurm_elastic.providers.gcp.errors import Refused
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.gce import api, discovery
from slurm_elastic.sandbox.gce.control import GceControl
from slurm_elastic.sandbox.gce.world import GcePace
from slurm_elastic.testing.contract import CLUSTER, spec_for

IMAGE = {"path": "projects/p/global/images/i", "id": "7"}


# credentials


def test_a_token_that_ends_in_the_middle_is_renewed(bed: GcpBed) -> None:
    provider = bed.open()
    provider.check()
    bed.control.order("forget-tokens")
    provider.check()
    assert provider.launch(spec_for(bed, provider, 1))


def test_a_key_that_others_may_read_is_refused(bed: GcpBed) -> None:
    bed.key.chmod(0o644)
    with pytest.raises(AuthError, match="chmod"):
        bed.open().check()
    bed.key.chmod(0o600)
    bed.open().check()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"type": "service_account"}', "\0"])
def test_a_file_that_is_no_key_is_named_without_its_content(bed: GcpBed, text: str) -> None:
    bed.key.write_text(text)
    with pytest.raises(AuthError, match="no key file of a service account"):
        bed.open().check()


def test_a_renewed_key_is_used_after_the_old_one_fails(bed: GcpBed) -> None:
    write_key(bed.key, f"{bed.control.url}/nowhere")
    provider = bed.open()
    with pytest.raises(ProviderError):
        provider.check()
    write_key(bed.key, bed.control.token_url)
    bed.open().check()


def test_tokens_and_keys_are_taken_out_of_bundles() -> None:
    secrets = ("ya29.a0AfH6SMBx-abc_DEF123", "1//0gabcdefghijklmnopqrst-uv", "AIzaSyA" + "b" * 32,
               "GOCSPX-abcdefghijklmnop")  # fmt: skip
    text, count = redacted("\n".join(f"saw {secret} there" for secret in secrets))
    assert count == len(secrets)
    assert not [secret for secret in secrets if secret in text]
    assert "ya29" not in errors.sentence(f"bad token {secrets[0]}")


# requests


def body(bed: GcpBed, spec: LaunchSpec, **more: object):
    return requests.body(
        bed.settings(**more), CLUSTER, spec, spec.nodes, image=IMAGE, parts=()
    )["instanceProperties"]  # fmt: skip


def test_a_machine_never_reboots_behind_slurms_back_and_spot_is_deleted(bed: GcpBed) -> None:
    spec = spec_for(bed, bed.open(), 1)
    assert spec.offer.market is Market.SPOT
    spot = body(bed, spec)["scheduling"]
    assert spot == {
        "automaticRestart": False, "provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE",
        "instanceTerminationAction": "DELETE",
    }  # fmt: skip
    plain = replace(spec, offer=replace(spec.offer, market=Market.ON_DEMAND))
    assert body(bed, plain)["scheduling"] == {"automaticRestart": False}


def test_a_placed_on_demand_machine_is_accepted(bed: GcpBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    placed = replace(spec.pool, machine=MachineOptions(placement_group="close"))
    offer = replace(spec.offer, market=Market.ON_DEMAND)
    assert provider.launch(replace(spec, offer=offer, pool=placed))


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("h3-standard-88", True),
        ("c3-highcpu-192-metal", True),
        ("a2-highgpu-1g", True),
        ("n2-standard-16", False),
        ("e2-standard-2", False),
        ("c2-standard-60", False),
    ],
)
def test_types_that_cannot_move_end_at_the_maintenance_of_their_host(
    bed: GcpBed, name: str, stays: bool
) -> None:
    spec = spec_for(bed, bed.open(), 1)
    offer = replace(spec.offer, market=Market.ON_DEMAND, instance_type=name)
    words = body(bed, replace(spec, offer=offer))["scheduling"]
    assert ("onHostMaintenance" in words) is stays


@pytest.mark.parametrize(("days", "end"), [(1, 31), (90, 120), (91, None)])
def test_google_ends_no_machine_before_its_last_jobs_had_a_month(
    bed: GcpBed, days: float, end: float | None
) -> None:
    """At its highest age a machine only takes no more jobs."""
    spec = spec_for(bed, bed.open(), 1)
    offer = replace(spec.offer, market=Market.ON_DEMAND)
    aged = replace(spec, offer=offer, pool=replace(spec.pool, max_age=days * 86400.0))
    words = body(bed, aged)["scheduling"]
    assert words.get("maxRunDuration") == (end and {"seconds": str(end * 86400)})
    assert words.get("instanceTerminationAction") == (end and "DELETE")


def test_a_reservation_is_named(bed: GcpBed) -> None:
    spec = spec_for(bed, bed.open(), 1)
    held = Reservation(
        name="bought", kind=ReservationKind.CAPACITY, begins_at=0, ends_at=4e9, type="small",
        count=1, id="our-reservation",
    ).held("google")  # fmt: skip
    words = body(bed, replace(spec, offer=replace(spec.offer, held=held, market=Market.RESERVED)))
    assert words["reservationAffinity"]["values"] == ["our-reservation"]
    assert "SPOT" not in json.dumps(words["scheduling"])


def test_the_whole_request_is_one_that_google_describes(bed: GcpBed) -> None:
    """With every option that a site can set."""
    if discovery.document() is None:
        pytest.skip("google-api-python-client is not here")
    disk = Disk(size=40960, type="hyperdisk-balanced", iops=3000, throughput=200, kms_key="k")
    spec = spec_for(bed, bed.open(), 3)
    options = MachineOptions(root_disk=disk, placement_group="close")
    spec = replace(spec, pool=replace(spec.pool, machine=options, max_age=9e5, stopped=1), least=2)
    whole = requests.body(
        bed.settings(
            external_ip=True, network_tags=("slurm",), secure_boot=True, labels={"team": "a"},
            service_account="n@p.iam.gserviceaccount.com", subnetwork=None,
        ),
        CLUSTER, spec, spec.nodes, image=IMAGE, parts=(),
    )  # fmt: skip
    path = "projects/p/zones/us-central1-a/instances/bulkInsert"
    assert discovery.faults_of_request("POST", path, {"requestId": "x"}, whole) == []
    wrong = {**whole, "minimum": "1"}
    assert discovery.faults_of_request("POST", path, {}, wrong)
    assert discovery.faults_of_request("POST", path, {"token": "x"}, whole)
    assert discovery.faults_of_request("POST", f"{path}s", {}, whole)
    assert whole["minCount"] == "2"


def run_boothook(place: Path, **facts: str) -> None:
    """Run the text that a machine of Google's gets, with a metadata server and a systemd here."""
    asked: list[str] = []

    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Metadata-Flavor"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"gc-big-7-0123456789\n")

        def log_message(self, *words: object) -> None: ...

    systemctl = place / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >>{place}/commands\n')
    systemctl.chmod(0o755)
    with http.server.HTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = program(facts, requests.USER_DATA)
        text = text.replace("http://169.254.169.254", f"http://127.0.0.1:{server.server_port}")
        text = text.replace("/run/", f"{place}/run/")
        assert "'/run" not in text
        subprocess.run(
            [sys.executable, "-I", "-c", text], check=True, timeout=60, env={"PATH": str(place)}
        )
        server.shutdown()
    assert asked == ["Google"]


def test_a_machine_finds_its_node_by_its_name(tmp_path: Path) -> None:
    run_boothook(tmp_path, pool="a b")
    place = tmp_path / "run" / "slurm-elastic"
    assert (place / "node").read_text() == "gc-big-7\n"
    assert (place / "launch").read_text() == "pool='a b'\nnode=gc-big-7\n"
    assert (place / "launch").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("market", [Market.SPOT, Market.ON_DEMAND])
def test_a_preempted_machine_does_not_shut_down_while_its_jobs_are_saved(
    bed: GcpBed, tmp_path: Path, market: Market
) -> None:
    """Google presses the power button 30 s before it cuts the power."""
    spec = spec_for(bed, bed.open(), 1)
    spec = replace(spec, offer=replace(spec.offer, market=market))
    (document, _) = body(bed, spec)["metadata"]["items"]
    facts = re.search(r"FACTS = (\{.*\})", base64.b64decode(document["value"]).decode())
    assert facts is not None
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    run_boothook(tmp_path, **ast.literal_eval(facts[1]))
    settings = tmp_path / "run/systemd/logind.conf.d/slurm-elastic.conf"
    assert settings.exists() is (market is Market.SPOT), "the button stops other machines"
    if settings.exists():
        assert settings.read_text() == "[Login]\nHandlePowerKey=ignore\n"
        assert "kill --signal=HUP systemd-logind" in (tmp_path / "commands").read_text()


# refusals


@pytest.mark.parametrize(
    ("status", "reason", "message", "expected"),
    [
        (403, "rateLimitExceeded", "Quota exceeded", TransientError),
        (429, "", "", TransientError),
        (403, "quotaExceeded", "Quota 'CPUS' exceeded", QuotaError),
        (403, "forbidden", "Required 'compute.instances.create' permission", AuthError),
        (403, "forbidden", "Required 'compute.images.useReadOnly' permission", DeniedError),
        (403, "accessNotConfigured", "API has not been used in project 1", AuthError),
        (401, "authError", "Invalid Credentials", AuthError),
        (503, "insufficientCapacity", "", CapacityError),
        (503, "backendError", "", TransientError),
        (502, "", "<html>", TransientError),
        (302, "", "", TransientError),
        (400, "invalid", "Invalid value for field", ProviderError),
        (404, "notFound", "The resource 'projects/p/zones/z' was not found", ProviderError),
    ],
)
def test_a_refusal_is_one_of_ours(
    status: int, reason: str, message: str, expected: type[ProviderError]
) -> None:
    path = "projects/p/zones/z/instances/bulkInsert"
    assert (
        type(errors.of_answer("google", Refused("POST", path, status, reason, message))) is expected
    )


@pytest.mark.parametrize(
    ("path", "message", "expected"),
    [
        ("global/images/i", "Required 'compute.images.get' permission", DeniedError),
        ("global/images/family/f", "Required 'compute.images.getFromFamily'", DeniedError),
        ("global/images", "Required 'compute.images.list' permission", DeniedError),
        ("global/images/i", "Compute Engine API has not been used in project 1", AuthError),
        ("zones/z/instances", "Required 'compute.instances.list' permission", AuthError),
    ],
)
def test_an_image_that_may_not_be_read_stops_its_own_pools_alone(
    path: str, message: str, expected: type[ProviderError]
) -> None:
    refused = Refused("GET", f"projects/p/{path}", 403, "forbidden", message)
    assert type(errors.of_answer("google", refused)) is expected


def test_only_google_itself_says_that_a_machine_is_gone() -> None:
    path = "projects/p/zones/z/instances/gc1-00"
    said = f"The resource '{path}' was not found"
    own = errors.of_answer("google", Refused("GET", path, 404, "notFound", said))
    assert isinstance(own, InstanceNotFound)
    for message in ("The resource 'projects/p/zones/z' was not found", "<html>gc1-00</html>"):
        other = errors.of_answer("google", Refused("GET", path, 404, "", message))
        assert not isinstance(other, InstanceNotFound)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", CapacityError),
        ("VM_MIN_COUNT_NOT_REACHED", CapacityError),
        ("QUOTA_EXCEEDED", QuotaError),
        ("PERMISSIONS_ERROR", DeniedError),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", TransientError),
        ("INTERNAL_ERROR", TransientError),
        ("INVALID_FIELD_VALUE", ProviderError),
    ],
)
def test_an_operations_error_is_one_of_ours(code: str, expected: type[ProviderError]) -> None:
    general = {"code": "VM_MIN_COUNT_NOT_REACHED", "message": "too few"}
    error = errors.of_operation("google", [general, {"code": code, "message": "why"}])
    assert type(error) is expected
    assert error is not None
    assert error.code == code
    assert errors.of_operation("google", []) is None


def test_an_operation_that_google_does_not_support_is_no_lack_of_machines() -> None:
    code, texts = "UNSUPPORTED_OPERATION", ("no live migration", "not enough resources available")
    found = [errors.of_operation("google", [{"code": code, "message": text}]) for text in texts]
    assert [type(error) for error in found] == [ProviderError, CapacityError]


def test_the_reason_of_a_partial_launch_is_that_of_its_machines(
    bed: GcpBed, caplog: pytest.LogCaptureFixture
) -> None:
    bed.limit(1)
    provider = bed.open()
    with caplog.at_level("INFO"):
        assert len(provider.launch(spec_for(bed, provider, 3))) == 1
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in caplog.text


def test_fewer_machines_than_of_use_are_rolled_back(bed: GcpBed) -> None:
    bed.limit(2)
    provider = bed.open()
    spec = replace(spec_for(bed, provider, 3), least=3)
    with pytest.raises(CapacityError, match="ZONE_RESOURCE_POOL_EXHAUSTED"):
        provider.launch(spec)
    assert bed.alive() == set()


@pytest.mark.parametrize(("least", "of_size"), [(1, False), (3, True)])
def test_too_little_quota_for_a_whole_job_leaves_the_market_to_smaller_ones(
    control: GceControl, tmp_path: Path, least: int, of_size: bool
) -> None:
    bed = GcpBed(control, tmp_path, cpus=2 * (least - 1))
    provider = bed.open()
    spec = replace(spec_for(bed, provider, 3), least=least)
    with pytest.raises(QuotaError, match="QUOTA_EXCEEDED") as refused:
        provider.launch(spec)
    assert refused.value.of_size is of_size
    assert bed.alive() == set()


def test_a_call_whose_end_is_not_seen_may_have_made_machines(bed: GcpBed) -> None:
    bed.control.pace(GcePace(operation=3600))
    provider = bed.open(launch_wait=0.2)
    spec = spec_for(bed, provider, 2)
    with pytest.raises(TransientError, match="has not ended"):
        provider.launch(spec)
    bed.control.fail(Fault(kind=FaultKind.AUTH, action="operations.get", count=1))
    with pytest.raises(TransientError, match="outcome cannot be seen"):
        bed.open(launch_wait=5).launch(spec)
    assert len(bed.alive()) == 2


def test_a_repeated_launch_knows_machines_of_a_forgotten_token(bed: GcpBed) -> None:
    """For how long Google remembers a requestId is written nowhere."""
    provider = bed.open()
    spec = spec_for(bed, provider, 3)
    first = {m.id for m in provider.launch(spec)}
    bed.control.order("forget-requests")
    again = bed.open().launch(replace(spec, is_repeated=True))
    assert {m.id for m in again} == first == bed.alive()


def test_a_repeated_launch_that_is_refused_has_its_earlier_machines(bed: GcpBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 2)
    first = {m.id for m in provider.launch(spec)}
    bed.control.order("forget-requests")
    bed.fail(QuotaError)
    assert {m.id for m in bed.open().launch(replace(spec, is_repeated=True))} == first


def test_a_late_failure_is_no_answer_to_a_launch_that_has_begun(bed: GcpBed) -> None:
    """Google may still carry out the first call, so a refusal would launch its nodes twice."""
    provider = bed.open()
    spec = spec_for(bed, provider, 4)
    (failing,) = provider.launch(replace(spec, generation="earlier", nodes=spec.nodes[:1]))
    begun = replace(spec, nodes=spec.nodes[1:])
    bed.control.fail(Fault(kind=FaultKind.RESET_BEFORE, action=BULK))
    with pytest.raises(TransientError):
        provider.launch(begun)
    bed.heal()
    bed.control.halt([failing.id])
    list_tidily(provider)
    assert {m.node for m in provider.launch(begun)} == set(begun.nodes)
    fresh = replace(spec, generation="fresh", nodes=spec.nodes[:1])
    with pytest.raises(CapacityError, match="WentOff"):
        provider.launch(fresh)


def test_a_refusal_of_a_call_that_was_sent_before_leaves_no_machine_unknown(bed: GcpBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 2)
    bed.lose_answers()
    with pytest.raises(TransientError):
        provider.launch(spec)
    bed.heal()
    bed.control.fail(Fault(kind=FaultKind.AUTH, action=BULK))
    assert {m.id for m in provider.launch(spec)} == bed.alive()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_repeated_launch_of_several_calls_has_the_machines_of_each(
    bed: GcpBed, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """Also if machines of the first call have ended since."""
    monkeypatch.setattr(requests, "MAX_PER_CALL", 2)
    provider = bed.open()
    spec = spec_for(bed, provider, 4)
    first, second, *later = [machine.id for machine in provider.launch(spec)]
    ended = {first, second} if is_refused else {first}
    for machine in ended:
        bed.control.preempt(machine, 0)
    if is_refused:
        bed.control.fail(Fault(kind=FaultKind.AUTH, action=BULK))
    again = bed.open().launch(replace(spec, is_repeated=True))
    assert {m.id for m in again} == {first, second, *later} - ended == bed.alive()


# the rest


def test_lists_have_zones_that_the_file_no_longer_names(bed: GcpBed) -> None:
    provider = bed.open()
    machine = provider.launch(spec_for(bed, provider, 1))[0]
    assert machine.zone == ZONES[0]
    fewer = bed.open(zones=ZONES[1:])
    assert [m.id for m in fewer.instances()] == [machine.id]


def test_lists_do_not_carry_user_data(bed: GcpBed) -> None:
    record = {"name": "a", "metadata": {"items": [1]}, "networkInterfaces": [{"networkIP": "1"}]}
    assert api.selected([record], "name,networkInterfaces(networkIP)") == [
        {"name": "a", "networkInterfaces": [{"networkIP": "1"}]}
    ]
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    (listed,) = provider.instances()
    assert listed.address == machine.address != None  # noqa: E711


def test_maintenance_of_a_host_is_a_notice(bed: GcpBed) -> None:
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    begins = time.time() + 1800
    bed.control.maintain(machine.id, begins)
    (notice,) = provider.notices()
    assert (notice.instance, notice.deadline) == (machine.id, pytest.approx(begins, abs=0.01))


@pytest.mark.parametrize(("market", "hours"), [(Market.SPOT, 24), (Market.ON_DEMAND, 0.5)])
def test_no_job_leaves_for_maintenance_that_is_far_off_or_moves_its_machine(
    bed: GcpBed, market: Market, hours: float
) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    (machine,) = provider.launch(replace(spec, offer=replace(spec.offer, market=market)))
    bed.control.maintain(machine.id, time.time() + hours * 3600)
    assert provider.notices() == ()


def test_a_machine_of_a_pool_that_stops_machines_is_left_off(bed: GcpBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    (machine,) = provider.launch(replace(spec, pool=replace(spec.pool, stopped=1)))
    bed.control.halt([machine.id])
    (listed,) = list_tidily(bed.open())
    assert listed.state is InstanceState.STOPPED
    assert bed.alive() == {machine.id}


def test_images_are_families_names_or_what_fits(bed: GcpBed) -> None:
    provider = bed.open()
    assert provider.image_for(bed.pool) == "5000000000000000002", "the newest of its family"
    for choice, number in (
        (ImageChoice(id="worker-1"), "5000000000000000001"),
        (ImageChoice(name="worker-*"), "5000000000000000002"),
        (ImageChoice(os="debian", version="13"), "5000000000000000002"),
    ):
        pool = replace(bed.pool, image=choice)
        assert provider.image_for(pool) == number
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    assert machine.image == "5000000000000000002"
    with pytest.raises(ProviderError, match="no image has the name nothing"):
        provider.image_for(replace(bed.pool, image=ImageChoice(name="nothing")))


def test_a_type_that_a_zone_lacks_is_no_offer(bed: GcpBed) -> None:
    from slurm_elastic.config.clouds import SpotType

    types = {
        "small": SpotType(cpus=2, memory=4096, price=0.1),
        "unknown": SpotType(cpus=2, memory=4096, price=0.1),
    }
    provider = bed.open(types=types)
    offers = provider.offers(replace(bed.pool, instance_types=("small", "unknown")))
    assert {(o.instance_type, o.market) for o in offers} == {("small", Market.ON_DEMAND)}
    findings = {f.subject: f.level for f in provider.examine([bed.pool])}
    assert findings["type small"] is FindingLevel.OK
    pool = replace(bed.pool, instance_types=("unknown",))
    assert {f.subject: f.level for f in provider.examine([pool])}[
        "type unknown"
    ] is FindingLevel.WRONG


def test_doctor_looks_at_image_subnetwork_and_quota(bed: GcpBed) -> None:
    findings = {f.subject: f.level for f in bed.open().examine([bed.pool])}
    assert findings["image"] is findings["subnetwork"] is FindingLevel.OK
    assert {"quota CPUS", "quota PREEMPTIBLE_CPUS"} <= findings.keys()
    wrong = bed.open(image="family/nobody", subnetwork="nowhere").examine([bed.pool])
    levels = {f.subject: f.level for f in wrong}
    assert levels["image"] is levels["subnetwork"] is FindingLevel.WRONG


def test_spot_machines_use_the_quota_of_all_if_they_have_none_of_their_own(
    control: GceControl, tmp_path: Path
) -> None:
    bed = GcpBed(control, tmp_path, cpus=1, preemptible_cpus=0)
    spot = replace(bed.pool, markets=(Market.SPOT,))
    findings = {f.subject: f.level for f in bed.open().examine([spot])}
    assert findings["quota CPUS"] is FindingLevel.WRONG
    assert "quota PREEMPTIBLE_CPUS" not in findings


def test_an_unknown_project_is_an_error_and_no_empty_list(bed: GcpBed) -> None:
    provider = bed.open(project="other-project")
    for call in (provider.instances, provider.check, lambda: provider.offers(bed.pool)):
        with pytest.raises(ProviderError):
            call()


def test_the_console_of_a_machine_is_shown(bed: GcpBed) -> None:
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    assert provider.console(machine.id) == f"printed by {machine.id}"


def test_requests_of_the_suite_are_compared_with_googles_description(bed: GcpBed) -> None:
    provider = bed.open()
    before = bed.control.state().checked
    provider.launch(spec_for(bed, provider, 1))
    state = bed.control.state()
    assert state.calls[BULK] == 1
    if discovery.document() is not None:
        assert state.checked > before
