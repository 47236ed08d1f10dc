"""The azure provider beyond the contract: requests, refusals, tokens, remains, pace."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from providers.azure.bed import SIZE, AzureBed

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.redaction import redacted
from slurm_elastic.config import Cluster
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec, Market
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.machine_options import Disk, MachineOptions
from slurm_elastic.model.protocols import list_tidily
from slurm_elastic.providers.azure import convert, remains, requests
from slurm_elastic.providers.azure.addresses import READ_EVERY_S, Addresses, address_of
from slurm_elastic.providers.azure.client import ArmApi, is_below
from slurm_elastic.providers.azure.convert import ViewFields
from slurm_elastic.providers.azure.credentials import Tokens
from slurm_elastic.providers.azure.errors import Asked, classify, sentence
from slurm_elastic.providers.azure.machines import START_COUNTS_S
from slurm_elastic.providers.azure.pacing import READS, WRITES, ArmRates
from slurm_elastic.providers.azure.provider import AzureProvider
from slurm_elastic.providers.base.bounded_http import BoundedSession
from slurm_elastic.providers.base.token_bucket import Rate
from slurm_elastic.sandbox.azure import serve, world
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.contract import CLUSTER, UUID, spec_for

VM = Asked("GET", "/subscriptions/s/x/providers/Microsoft.Compute/virtualMachines/n-1")
PUT = Asked("PUT", VM.path)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def opened_at(bed: AzureBed, clock: Clock) -> AzureProvider:
    return AzureProvider(
        bed.settings(), Cluster(name="site", uuid=UUID), monotonic=clock, poll_every_s=0.05
    )


def ordered(bed: AzureBed, market: Market, **pool: object) -> dict:
    provider = bed.open()
    offer = next(o for o in provider.offers(bed.pool) if o.market is market)
    changed = replace(bed.pool, **pool)
    spec = LaunchSpec(generation="g1", pool=changed, nodes=("az1",), offer=offer)
    body = requests.body(bed.settings(), CLUSTER, spec, "az1", (), 1.0)
    return dict(body)


def test_card_and_disk_end_with_their_machine(bed: AzureBed) -> None:
    properties = ordered(bed, Market.ON_DEMAND)["properties"]
    disk = properties["storageProfile"]["osDisk"]
    (card,) = properties["networkProfile"]["networkInterfaceConfigurations"]
    assert disk["deleteOption"] == card["properties"]["deleteOption"] == "Delete"
    assert disk["name"] == card["name"]
    machine = requests.machine_of_part(UUID, disk["name"], {})
    assert machine.startswith("az1-")
    assert requests.machine_of_part(UUID.replace("7", "8"), disk["name"], {}) == ""
    assert requests.machine_of_part("", "theirs__OsDisk", {}) == ""
    assert requests.machine_of_part(UUID, f"{card['name']}-1f2e3d4c", {}) == machine
    assert requests.machine_of_part(UUID, "nic-1f2e3d4c", card["tags"]) == machine
    others = {**card["tags"], "slurm-elastic:cluster": "another"}
    assert requests.machine_of_part(UUID, "nic-1f2e3d4c", others) == ""
    assert "priority" not in properties


@pytest.mark.parametrize(("max_price", "sent"), [(None, -1), (0.05, 0.05), (9.0, 0.1)])
def test_a_spot_machine_is_deleted_when_it_is_taken(
    bed: AzureBed, max_price: float | None, sent: float
) -> None:
    properties = ordered(bed, Market.SPOT, max_price=max_price)["properties"]
    assert properties["priority"] == "Spot"
    assert properties["evictionPolicy"] == "Delete"
    assert properties["billingProfile"] == {"maxPrice": sent}


def test_a_pool_chooses_image_and_disk(bed: AzureBed) -> None:
    disk = Disk(size=40 << 10, type="Premium_LRS", kms_key="/key")
    vm = ordered(
        bed, Market.ON_DEMAND, image=ImageChoice(id="/x/images/one"),
        machine=MachineOptions(root_disk=disk),
    )  # fmt: skip
    storage = vm["properties"]["storageProfile"]
    assert storage["imageReference"] == {"id": "/x/images/one"}
    assert storage["osDisk"]["diskSizeGB"] == 40
    assert storage["osDisk"]["managedDisk"] == {
        "storageAccountType": "Premium_LRS", "diskEncryptionSet": {"id": "/key"}
    }  # fmt: skip


def test_user_data_that_azure_would_refuse_is_a_mistake_of_the_file(
    bed: AzureBed, tmp_path: Path
) -> None:
    file = tmp_path / "user-data"
    file.write_bytes(b"#!/bin/sh\n# " + os.urandom(80000).hex().encode())
    with pytest.raises(ConfigError, match="Azure leaves room for"):
        bed.open(user_data=str(file))


@pytest.mark.parametrize(
    ("status", "code", "message", "asked", "kind"),
    [
        (409, "SkuNotAvailable", "not available", PUT, CapacityError),
        (409, "AllocationFailed", "", PUT, CapacityError),
        (400, "SubnetIsFull", "", PUT, CapacityError),
        (409, "OperationNotAllowed", "exceeding approved Family Cores quota", PUT, QuotaError),
        (409, "OperationNotAllowed", "LowPriorityCores", PUT, QuotaError),
        (409, "OperationNotAllowed", "the machine is generalized", PUT, ProviderError),
        (429, "OperationNotAllowed", "quota of calls", PUT, TransientError),
        (409, "AnotherOperationInProgress", "", PUT, TransientError),
        (403, "RequestDisallowedByPolicy", "", PUT, DeniedError),
        (403, "AuthorizationFailed", "", PUT, DeniedError),
        (403, "AuthorizationFailed", "", VM, AuthError),
        (401, "ExpiredAuthenticationToken", "", VM, AuthError),
        (404, "SubscriptionNotFound", "", VM, AuthError),
        (404, "ResourceNotFound", "", VM, InstanceNotFound),
        (404, "ResourceNotFound", "the image", PUT, ProviderError),
        (404, "ResourceGroupNotFound", "", VM, ProviderError),
        (404, "", "<html>a proxy</html>", VM, ProviderError),
        (409, "ScopeLocked", "", Asked("DELETE", VM.path), ProviderError),
        (302, "", "", VM, ProviderError),
        (500, "", "", VM, TransientError),
        (503, "ServiceUnavailable", "", PUT, TransientError),
    ],
)
def test_a_refusal_is_what_it_means(
    status: int, code: str, message: str, asked: Asked, kind: type[ProviderError]
) -> None:
    assert classify(status, code, message, asked)[0] is kind


def test_a_lack_of_capacity_that_shows_later_is_a_refusal(bed: AzureBed) -> None:
    """With nothing left of it: neither machine nor card nor disk."""
    bed.limit(1)
    bed.world.capacity_late = True
    provider = bed.open(launch_wait=5.0)
    machines = provider.launch(spec_for(bed, provider, 3))
    assert len(machines) == 1
    assert bed.alive() == {machines[0].id}
    assert len(bed.world.cards) == len(bed.world.disks) == 1
    with pytest.raises(CapacityError, match="AllocationFailed"):
        provider.launch(spec_for(bed, provider, 1, generation="g2"))
    assert len(bed.alive()) == 1


NO_ROOM = ("AllocationFailed", "We do not have sufficient capacity.")
NO_CORES = ("OperationNotAllowed", "exceeding approved Total Regional Cores quota.")


def stopped(bed: AzureBed, provider: AzureProvider) -> Instance:
    offer = next(o for o in provider.offers(bed.pool) if o.market is Market.ON_DEMAND)
    spec = LaunchSpec(generation="g1", pool=bed.pool, nodes=("az1",), offer=offer)
    (machine,) = provider.launch(spec)
    provider.stop([machine.id])
    return machine


@pytest.mark.parametrize(("failure", "kind"), [(NO_ROOM, CapacityError), (NO_CORES, QuotaError)])
def test_a_start_that_azure_refuses_after_it_accepted_it_is_a_refusal(
    bed: AzureBed, failure: tuple[str, str], kind: type[ProviderError]
) -> None:
    """And the answer to the next launch of that kind, so that the offer cools down."""
    provider = opened_at(bed, Clock())
    machine = stopped(bed, provider)
    bed.world.late_start = failure
    provider.start(machine.id)
    assert [m.state for m in provider.tidy()] == [InstanceState.STOPPED]
    with pytest.raises(kind, match=failure[0]):
        provider.start(machine.id)
    offer = next(o for o in provider.offers(bed.pool) if o.key == machine.offer_key)
    spec = LaunchSpec(generation="g2", pool=bed.pool, nodes=("az2",), offer=offer)
    with pytest.raises(kind, match=failure[0]):
        provider.launch(spec)


def test_the_cause_of_a_refused_start_is_read_from_its_operation(
    bed: AzureBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = opened_at(bed, Clock())
    machine = stopped(bed, provider)
    bed.world.late_start = NO_CORES
    provider.start(machine.id)
    monkeypatch.setattr(convert, "view", lambda _: ViewFields(power="deallocated", failed=True))
    with pytest.raises(QuotaError):
        provider.start(machine.id)


def test_a_failure_that_is_of_no_recent_start_does_not_refuse_a_start(bed: AzureBed) -> None:
    clock = Clock()
    provider = opened_at(bed, clock)
    machine = stopped(bed, provider)
    bed.world.late_start = NO_ROOM
    provider.start(machine.id)
    bed.world.late_start = ("", "")
    opened_at(bed, clock).start(machine.id)
    assert [m.state for m in bed.open().instances()] == [InstanceState.RUNNING]
    provider.stop([machine.id])
    bed.world.late_start = NO_ROOM
    provider.start(machine.id)
    bed.world.late_start = ("", "")
    clock.now += START_COUNTS_S
    provider.start(machine.id)
    assert [m.state for m in bed.open().instances()] == [InstanceState.RUNNING]


def test_a_start_that_failed_for_a_passing_reason_is_repeated(bed: AzureBed) -> None:
    provider = opened_at(bed, Clock())
    machine = stopped(bed, provider)
    bed.world.late_start = ("OperationPreempted", "Another operation took its place.")
    provider.start(machine.id)
    bed.world.late_start = ("", "")
    provider.start(machine.id)
    assert [m.state for m in bed.open().instances()] == [InstanceState.RUNNING]


def test_a_failed_machine_whose_guest_runs_is_kept(bed: AzureBed) -> None:
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    vm = bed.world.vms[machine.id]
    vm.state, vm.failure = "Failed", ("OSProvisioningTimedOut", "It took too long.")
    assert [m.state for m in list_tidily(provider)] == [InstanceState.RUNNING]
    assert bed.alive() == {machine.id}


def test_a_machine_whose_state_cannot_be_read_is_not_lost(bed: AzureBed) -> None:
    provider = bed.open()
    fail = bed.fail_late("az1")
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    fail()
    bed.emulator.faults.add(Fault(kind=FaultKind.INTERNAL, action="instanceView", count=1))
    with pytest.raises(TransientError):
        provider.tidy()
    assert bed.alive() == {machine.id}


def test_a_name_that_another_machine_has_is_not_ours(bed: AzureBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    name = requests.vm_name(CLUSTER, spec, "az1")
    world.add(bed.world, name, {"properties": {}, "location": "x"})
    with pytest.raises(ProviderError, match="another machine has the name"):
        provider.launch(spec)
    assert bed.alive() == {name}
    assert list(provider.instances()) == []


def test_a_lock_is_named(bed: AzureBed) -> None:
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    bed.world.locks = ["keep"]
    with pytest.raises(ProviderError, match=f"ScopeLocked: {machine.id}"):
        provider.terminate([machine.id])
    findings = {f.subject: f for f in provider.examine([bed.pool])}
    assert findings["lock keep"].level == Finding.wrong("x", "x", "x", "x").level


# tokens


def test_a_token_that_ends_in_the_middle_is_renewed(bed: AzureBed) -> None:
    provider = bed.open()
    provider.check()
    bed.emulator.tokens = {"another-token"}
    provider.check()
    bed.emulator.tokens = set()
    with pytest.raises(AuthError, match="InvalidAuthenticationToken"):
        provider.check()


def test_a_token_is_renewed_before_its_end(bed: AzureBed) -> None:
    now = [0.0]
    http = BoundedSession()
    tokens = Tokens(bed.settings(), http, lambda: now[0])
    with http.within(30):
        first = tokens.get()
        bed.emulator.tokens = {"second"}
        now[0] = 3200.0
        assert tokens.get() == first
        now[0] = 3400.0
        assert tokens.get() == "second"


def test_the_heads_own_identity_needs_no_file(bed: AzureBed) -> None:
    http = BoundedSession()
    url = f"{bed.emulator.url}/metadata/identity/oauth2/token"
    tokens = Tokens(bed.settings(credentials=None), http, identity_url=url)
    with http.within(30):
        assert tokens.get() == serve.TOKEN


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML"),
        ("- x", "has no lines of the form key: text"),
        ("tenant: t\nclient_id: 7", "has no lines of the form key: text"),
        ("client_id: c\nclient_scret: s", "has the key client_scret"),
        ("tenant: t", "has no client_id"),
        ("tenant: t\nclient_id: c", "expected client_id alone, or tenant"),
        ("client_id: c\nclient_secret: s", "expected client_id alone, or tenant"),
    ],
)
def test_a_file_of_credentials_that_cannot_be_used(bed: AzureBed, text: str, words: str) -> None:
    bed.file.write_text(text)
    with pytest.raises(AuthError, match=words):
        bed.open().check()


def test_a_file_that_others_may_read_and_one_that_is_not_there(bed: AzureBed) -> None:
    bed.file.chmod(0o644)
    with pytest.raises(AuthError, match="chmod 600"):
        bed.open().check()
    bed.file.unlink()
    with pytest.raises(AuthError, match="cannot be read"):
        bed.open().check()


def test_a_wrong_secret_is_said_without_it(bed: AzureBed) -> None:
    bed.login(tenant=serve.TENANT, client_id=serve.CLIENT, client_secret="abc8Q~wrong-secret")
    with pytest.raises(AuthError, match="invalid_client") as caught:
        bed.open().check()
    assert "abc8Q~" not in str(caught.value)


def test_a_federated_token_is_read_at_each_login(bed: AzureBed, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("not yet")
    bed.login(tenant=serve.TENANT, client_id=serve.CLIENT, federated_token_file=str(token))
    provider = bed.open()
    with pytest.raises(AuthError):
        provider.check()
    token.write_text(f"{serve.SECRET}\n")
    provider.check()


def test_a_link_to_another_host_gets_no_token(
    bed: AzureBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.crowd(3)
    bed.world.page = 1
    provider = bed.open()
    assert list(provider.instances()) == []
    monkeypatch.setattr(bed.emulator, "url", "http://127.0.0.2:1")
    with pytest.raises(TransientError, match="leads to another host"):
        provider.instances()


@pytest.mark.parametrize(
    ("link", "is_followed"),
    [
        ("https://management.azure.com:443/subscriptions/s?$skiptoken=x", True),
        ("https://Management.Azure.com/subscriptions/s", True),
        ("https://management.azure.com:444/subscriptions/s", False),
        ("http://management.azure.com:443/subscriptions/s", False),
        ("https://management.azure.com@elsewhere.example/subscriptions/s", False),
        ("https://login@management.azure.com/subscriptions/s", False),
        ("https://management.azure.com.elsewhere.example/subscriptions/s", False),
        ("https://management.azure.com:port/subscriptions/s", False),
        ("https:///subscriptions/s", False),
        ("/subscriptions/s", False),
        ("", False),
    ],
)
def test_a_link_is_followed_to_the_same_host_and_port_however_they_are_written(
    link: str, *, is_followed: bool
) -> None:
    for root in ("https://management.azure.com", "https://management.azure.com:443"):
        assert is_below(link, root) is is_followed


def test_a_list_of_pages_is_read_past_links_that_write_the_port(bed: AzureBed) -> None:
    bed.world.page = 1
    provider = bed.open()
    provider.launch(spec_for(bed, provider, 3))
    assert bed.emulator.link_root != bed.emulator.url
    assert len(provider.instances()) == 3


def test_secrets_of_azure_leave_no_text() -> None:
    link = "https://a.blob.core.windows.net/c/x.vhd?sv=2024&sig=abcDEF%2B123%3D&se=1"
    assert "abcDEF" not in sentence(link)
    account_key = f"{'abcDEF12' * 11}"[:86] + "=="
    for secret in ("abc8Q~AbCdEfGhIjKlMnOpQrStUvWxYz0123456.", account_key, link):
        assert "abc" not in redacted(f"answer {secret} end")[0]


# remains


def test_cards_and_disks_of_ended_machines_are_deleted_after_a_while(bed: AzureBed) -> None:
    clock = Clock()
    provider = opened_at(bed, clock)
    machines = provider.launch(spec_for(bed, provider, 2))
    bed.world.leaves_parts = True
    provider.terminate([machines[0].id])
    foreign = world.Part(name="theirs", vm="")
    bed.world.disks["theirs"] = foreign
    for now in (0.0, 301.0, 590.0):
        clock.now = now
        provider.tidy()
        assert len(bed.world.cards) == 2, "Azure may still be at work"
    clock.now = 1000.0
    provider.tidy()
    assert {part.vm for part in bed.world.cards.values()} == {machines[1].id}
    assert {p.name for p in bed.world.disks.values() if not p.vm} == {"theirs"}
    assert provider.trouble == ""


def test_nothing_is_deleted_while_a_list_fails(bed: AzureBed) -> None:
    clock = Clock()
    provider = opened_at(bed, clock)
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    bed.world.leaves_parts = True
    provider.terminate([machine.id])
    provider.tidy()
    clock.now = 1000.0
    bed.emulator.faults.add(Fault(kind=FaultKind.INTERNAL, action="disks"))
    provider.tidy()
    assert len(bed.world.cards) == len(bed.world.disks) == 1
    bed.heal()
    clock.now = 2000.0
    provider.tidy()
    assert bed.world.cards == bed.world.disks == {}


def test_what_cannot_be_deleted_is_reported(bed: AzureBed, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    provider = opened_at(bed, clock)
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    bed.world.leaves_parts = True
    provider.terminate([machine.id])
    provider.tidy()
    name = next(iter(bed.world.disks))
    bed.emulator.faults.add(Fault(kind=FaultKind.AUTH, action=name))
    clock.now = 2 * remains.ORPHAN_S
    provider.tidy()
    assert "2 parts of ended machines could not be deleted" in provider.trouble


def test_a_sweep_ends_soon_if_deletes_have_no_answer(bed: AzureBed) -> None:
    """The launches and ends of the cloud wait for it."""
    clock = Clock()
    provider = opened_at(bed, clock)
    machines = provider.launch(spec_for(bed, provider, 20))
    bed.world.leaves_parts = True
    provider.terminate([machine.id for machine in machines])
    provider.tidy()
    clock.now = 2 * remains.ORPHAN_S
    bed.emulator.requests.clear()
    bed.emulator.faults.add(Fault(kind=FaultKind.INTERNAL, action="*_*"))
    provider.tidy()
    deletes = [request for request in bed.emulator.requests if request.startswith("DELETE")]
    assert len(deletes) < 40
    assert "40 parts of ended machines could not be deleted" in provider.trouble
    bed.heal()
    clock.now += remains.SWEEP_EVERY_S
    provider.tidy()
    assert bed.world.cards == bed.world.disks == {}


# pace


class Paced:
    """Rates on a clock that sleeping advances."""

    def __init__(self, rate: Rate) -> None:
        self.now, self.lock = 0.0, threading.Lock()
        rates = {READS: Rate(1e9, 1e9), WRITES: rate, "deletes": rate}
        self.rates = ArmRates(rates, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_calls_wait_for_tokens_instead_of_being_refused() -> None:
    paced = Paced(Rate(200, 10))
    for _ in range(1000):
        paced.rates.take("az", "PUT", 60)
    assert 79 <= paced.now <= 1.1 * 80


def test_a_call_that_would_wait_too_long_is_not_made() -> None:
    paced = Paced(Rate(1, 0.01))
    paced.rates.take("az", "PUT", 30)
    with pytest.raises(TransientError, match="writes are used up") as caught:
        paced.rates.take("az", "PUT", 30)
    assert caught.value.code == "HTTP429"
    paced.rates.take("az", "GET", 30)


def test_a_pause_that_azure_asks_for_is_kept() -> None:
    paced = Paced(Rate(200, 10))
    paced.rates.rejected("PUT", 17.0)
    paced.rates.take("az", "PUT", 60)
    assert 17.0 <= paced.now < 18.0
    paced.rates.rejected("PUT", 1e9)
    paced.rates.take("az", "PUT", 400)
    assert paced.now < 400


def test_a_throttled_call_pauses_the_next_ones(bed: AzureBed) -> None:
    paced = Paced(Rate(200, 10))
    provider = AzureProvider(bed.settings(), CLUSTER, rates=paced.rates, poll_every_s=0.05)
    bed.emulator.faults.add(Fault(kind=FaultKind.THROTTLE, action="create", count=1))
    with pytest.raises(TransientError):
        provider.launch(spec_for(bed, provider, 1))
    assert len(provider.launch(spec_for(bed, provider, 1))) == 1
    assert paced.now > 0


def test_doctor_reports_sizes_quotas_and_machines_of_others(bed: AzureBed) -> None:
    bed.world.spot_cores = 0
    bed.crowd(1)
    found = {f.subject: f for f in bed.open().examine([bed.pool])}
    assert "machines without our tags: theirs" in found[f"resource group {serve.GROUP}"].observed
    assert found[f"size {SIZE}"].observed == "2 vCPUs, 8192 MiB"
    assert "0 cores" in found["quota of lowPriorityCores"].observed
    bed.world.restrictions = [{"type": "Location", "reasonCode": "NotAvailableForSubscription"}]
    found = {f.subject: f for f in bed.open(subnet="/missing").examine([bed.pool])}
    assert found[f"size {SIZE}"].observed == "NotAvailableForSubscription"
    assert "ResourceNotFound" in found["subnet"].observed


# addresses


def test_a_machine_has_the_address_of_its_card(bed: AzureBed) -> None:
    provider = bed.open()
    provider.launch(spec_for(bed, provider, 2))
    machines = provider.tidy()
    cards = {part.vm: part.address for part in bed.world.cards.values()}
    assert {m.id: m.address for m in machines} == cards
    assert len(set(cards.values())) == 2
    assert {m.public_address for m in machines} == {None}
    bed.emulator.requests.clear()
    assert {m.address for m in provider.instances()} == set(cards.values())
    assert not [r for r in bed.emulator.requests if "networkInterfaces" in r], "they do not change"


def test_without_the_right_to_read_cards_machines_are_listed_without_address(bed: AzureBed) -> None:
    provider = bed.open()
    provider.launch(spec_for(bed, provider, 1))
    bed.emulator.faults.add(Fault(kind=FaultKind.AUTH, action="networkInterfaces"))
    (machine,) = bed.open().instances()
    assert (machine.state, machine.address) == (InstanceState.RUNNING, None)
    (known,) = provider.instances()
    assert known.address == "10.0.0.5", "an address that is known stays"


def test_an_address_is_asked_for_again_until_the_card_has_it(bed: AzureBed) -> None:
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    (card,) = bed.world.cards.values()
    card.address, address = "", card.address
    clock = Clock()
    of = Addresses(bed.settings(), ArmApi(bed.settings()), clock).of
    assert of([machine.id]) == {}
    card.address = address
    assert of([machine.id]) == {}, "not in each round"
    clock.now += READ_EVERY_S
    assert of([machine.id]) == {machine.id: address}
    assert of([]) == {}


@pytest.mark.parametrize(
    "properties",
    [{}, {"ipConfigurations": None}, {"ipConfigurations": ["x"]}, {"ipConfigurations": [{}]}],
)
def test_a_strange_card_has_no_address(properties: dict[str, object]) -> None:
    assert address_of(properties) == ""


def test_the_primary_configuration_of_a_card_counts() -> None:
    second, first = ({"properties": {"privateIPAddress": f"10.0.0.{n}", "primary": n == 1}}
                     for n in (2, 1))  # fmt: skip
    assert address_of({"ipConfigurations": [second, first]}) == "10.0.0.1"


@pytest.mark.parametrize(
    ("power", "code", "is_failed"),
    [
        ("running", "AllocationFailed", False),
        ("", "AllocationFailed", True),
        ("", "QuotaExceeded", True),
        ("deallocated", "", True),
        ("stopped", "VMExtensionProvisioningError", True),
        # The guest runs, and this one view lacks its power state.
        ("", "VMExtensionProvisioningError", False),
        ("", "", False),
        ("unknown", "VMExtensionProvisioningError", False),
        ("starting", "", False),
    ],
)
def test_a_view_without_the_power_state_ends_no_machine(
    power: str, code: str, *, is_failed: bool
) -> None:
    machine = convert.VmFields(name="az1-1", provisioning="failed", created=1.0, tags={})
    seen = ViewFields(power=power, failed=True, code=code)
    assert convert.has_failed(machine, seen) == is_failed
    state = InstanceState.STOPPING if is_failed else InstanceState.RUNNING
    assert convert.state_of(machine, seen) is state


def test_a_machine_that_was_just_ordered_is_no_missing_machine(
    bed: AzureBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure may answer 404 by name, too, for some seconds after it has accepted an order."""
    clock = Clock()
    cloud = opened_at(bed, clock)
    spec = spec_for(bed, cloud, 1)
    bed.hide_fresh(3600.0)
    (machine,) = cloud.launch(spec)
    monkeypatch.setattr(cloud._machines, "get", lambda _name: None)
    with pytest.raises(TransientError, match="NotYetFound"):
        cloud.launch(replace(spec, is_repeated=True))
    clock.now += 61
    assert cloud._hidden(machine.id) is None
    clock.now -= 61
    cloud.terminate([machine.id])
    assert cloud._hidden(machine.id) is None, "we have ended it"
