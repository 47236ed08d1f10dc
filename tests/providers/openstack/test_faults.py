"""What may go wrong at nova beyond what the contract and the fault matrix ask of each cloud: orders
that were taken and not looked after, deletions that nova refuses, words of TLS.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from keystoneauth1 import exceptions as ksa
from msgspec.structs import replace
from patience import awake, patience, stretched
from providers.openstack.bed import CREATE, DELETE, LIST, POLICY, QUOTA, StackBed
from providers.openstack.stand_in import PASSWORD, Kind

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.model.cluster import InstanceState, LaunchSpec
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.base.bounded_http import NotConnected
from slurm_elastic.providers.openstack.client import OpenStackApi
from slurm_elastic.providers.openstack.errors import is_refusal, translated
from slurm_elastic.testing.contract import spec_for
from tests.ports import free_ports

TIMEOUT = 4.0
TRANSIENT = [k for k in Kind if k not in (Kind.STATUS, Kind.SLOW)]
STATUSES: dict[int, tuple[str, type[ProviderError]]] = {
    401: ("The request you have made requires authentication.", AuthError),
    403: (POLICY, AuthError),
    408: ("slow", TransientError),
    413: ("Over limit: too many requests", TransientError),
    429: ("This request was rate-limited.", TransientError),
    500: ("Unexpected API Error.", TransientError),
    502: ("Bad Gateway", TransientError),
    503: ("No server is available", TransientError),
    504: ("Gateway Time-out", TransientError),
}
TOKEN = "POST /v3/auth/tokens"


def settled(bed: StackBed, provider: Provider, count: int) -> None:
    """The provider and the cloud agree on so many machines, each of a node of its own."""
    found = [m for m in provider.instances() if m.state is not InstanceState.STOPPING]
    assert {m.id for m in found} == bed.alive()
    assert len({m.node for m in found}) == len(found) == count


@pytest.mark.parametrize("where", ["identity", "compute"])
def test_without_a_connection_nothing_was_sent(bed: StackBed, where: str) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    if where == "compute":
        bed.login(compute_endpoint_override=f"{url}/v2.1")
    else:
        bed.login(auth={"auth_url": f"{url}/v3", "username": "elastic", "password": PASSWORD})
    with pytest.raises(TransientError) as caught:
        bed.open().check()
    assert caught.value.code == "NotConnected"
    assert is_refusal(caught.value)


def test_a_peer_that_goes_away_under_tls_is_no_matter_of_rights() -> None:
    words = (
        "SSL exception: [SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"
    )
    with pytest.raises(TransientError) as caught, translated("stack"):
        raise ksa.SSLError(words)
    assert not is_refusal(caught.value)


@pytest.mark.parametrize("words", ["[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
                         "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required",
                         "[SSL] tlsv1 alert unknown ca"])  # fmt: skip
def test_words_about_a_certificate_are_a_matter_of_rights(words: str) -> None:
    with pytest.raises(AuthError), translated("stack"):
        raise ksa.SSLError(words)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("action", [CREATE, LIST, DELETE, TOKEN])
def test_statuses(bed: StackBed, status: int, action: str) -> None:
    message, expected = STATUSES[status]
    # Nothing here is to time out, also on a busy machine.
    provider = bed.open(timeout=patience(30))
    if action == DELETE:
        ids = [m.id for m in provider.launch(spec_for(bed, provider, 2))]
    spec = spec_for(bed, provider, 2, generation="g2")
    bed.stand_in.refuse(status, message, action)
    fresh = bed.open(timeout=patience(30)) if action == TOKEN else provider
    call = (lambda: provider.terminate(ids)) if action == DELETE else (lambda: fresh.launch(spec))
    with pytest.raises(expected) as caught:
        call()
    assert caught.value.cloud == "stack"
    bed.heal()
    if action == DELETE:
        provider.terminate(ids)
    settled(bed, provider, 0)
    if (action, status) in [(CREATE, 408), (CREATE, 500), (CREATE, 502), (CREATE, 504)]:
        with pytest.raises(UnsettledError):
            fresh.launch(spec)
        settled(bed, provider, 0)
    elif action != DELETE:
        assert len(fresh.launch(spec)) == 2


@pytest.mark.parametrize("kind", TRANSIENT)
def test_the_look_at_what_was_ordered(bed: StackBed, kind: Kind) -> None:
    """The order was carried out, and the lists after it fail."""
    provider = bed.open(timeout=TIMEOUT)
    spec = spec_for(bed, provider, 2)
    bed.world.schedule = 1.0
    bed.stand_in.fail(kind, LIST, 0)
    fault = bed.world.faults[0]
    machines = None
    original = bed.stand_in.struck

    def struck(request: str):
        if request == CREATE:
            fault.count = None
        return original(request)

    bed.stand_in.struck = struck  # type: ignore[method-assign]
    try:
        with pytest.raises(TransientError):
            machines = provider.launch(spec)
    finally:
        bed.stand_in.struck = original  # type: ignore[method-assign]
        bed.heal()
    assert machines is None
    assert len(provider.launch(spec)) == 2
    settled(bed, provider, 2)


@pytest.mark.parametrize("kind", TRANSIENT)
def test_list(bed: StackBed, kind: Kind) -> None:
    provider = bed.open(timeout=TIMEOUT)
    provider.launch(spec_for(bed, provider, 2))
    bed.stand_in.fail(kind, LIST)
    with pytest.raises(TransientError):
        provider.instances()
    bed.heal()
    settled(bed, provider, 2)


@pytest.mark.parametrize("kind", [Kind.DRIP, Kind.SILENT_BEFORE, Kind.SILENT_AFTER])
@pytest.mark.parametrize("action", [TOKEN, "GET /v3", LIST])
def test_no_answer_holds_longer_than_the_time_out(bed: StackBed, kind: Kind, action: str) -> None:
    """A drip ends with the time-out too: each byte begins requests' own limit anew."""
    provider = bed.open(timeout=2.0)
    bed.stand_in.fail(kind, action)
    with awake() as took:
        with pytest.raises(TransientError):
            provider.instances()
        assert took() < stretched(2.5)
    bed.heal()


def test_a_quota_met_is_a_quota_error_with_the_clouds_words(bed: StackBed) -> None:
    bed.stand_in.refuse(403, QUOTA, CREATE)
    provider = bed.open()
    with pytest.raises(QuotaError) as caught:
        provider.launch(spec_for(bed, provider, 1))
    assert caught.value.code == "instances-quota"
    assert caught.value.message == QUOTA


def test_a_state_in_the_way_of_a_deletion_passes(bed: StackBed) -> None:
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    bed.world.delete_conflicts = 1
    with pytest.raises(TransientError, match="task_state migrating"):
        provider.terminate([machine.id])
    provider.terminate([machine.id])
    assert bed.alive() == set()


def test_a_cell_that_is_down_is_no_cell_without_machines(bed: StackBed) -> None:
    """nova lists an id and UNKNOWN of each: the machines are there."""
    provider = bed.open()
    provider.launch(spec_for(bed, provider, 1))
    hidden = next(iter(bed.world.servers.values()))
    kept = hidden.pop("metadata")
    with pytest.raises(TransientError, match="1 servers lack their metadata"):
        provider.instances()
    hidden["metadata"] = kept
    assert len(provider.instances()) == 1


def test_once_ordered_no_refusal_says_that_there_is_nothing(bed: StackBed) -> None:
    """Rights that end between the order and the look at it leave the launch in doubt."""
    provider = bed.open()
    spec = spec_for(bed, provider, 2)
    original = bed.stand_in.struck

    def struck(request: str):
        if request == CREATE:
            bed.stand_in.refuse(403, POLICY, LIST)
        return original(request)

    bed.stand_in.struck = struck  # type: ignore[method-assign]
    try:
        with pytest.raises(TransientError, match="were ordered and cannot be looked after"):
            provider.launch(spec)
    finally:
        bed.stand_in.struck = original  # type: ignore[method-assign]
    bed.heal()
    assert len(provider.launch(spec)) == 2
    settled(bed, provider, 2)


@pytest.mark.parametrize("how", ["conflict", Kind.STATUS, Kind.SILENT_AFTER, Kind.RESET_AFTER])
def test_a_failed_deletion_of_what_found_no_host_does_not_keep_the_job(
    bed: StackBed, how: str
) -> None:
    """The lists have shown what came of the order: nothing is waited for."""
    provider = bed.open(timeout=TIMEOUT)
    spec = spec_for(bed, provider, 2)
    bed.limit(0)
    if how == "conflict":
        bed.world.delete_conflicts = 1
    else:
        bed.stand_in.fail(Kind(how), DELETE, 1)
    with pytest.raises(TransientError):
        provider.launch(spec)
    bed.stand_in.heal()
    with pytest.raises(CapacityError):
        provider.launch(spec)
    assert bed.alive() == set()


def ordered_and_not_looked_after(bed: StackBed, spec: LaunchSpec, provider: Provider) -> None:
    """The scheduler finds no host, and nobody sees it: lists fail from the order on."""
    bed.limit(0)
    original = bed.stand_in.struck

    def struck(request: str):
        if request == CREATE:
            bed.stand_in.refuse(500, "Unexpected API Error.", LIST)
        return original(request)

    bed.stand_in.struck = struck  # type: ignore[method-assign]
    try:
        with pytest.raises(TransientError):
            provider.launch(spec)
    finally:
        bed.stand_in.struck = original  # type: ignore[method-assign]
    bed.stand_in.heal()


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "killed"])
def test_what_lists_show_as_failed_is_waited_for_no_longer(bed: StackBed, killed: bool) -> None:
    provider = bed.open(timeout=TIMEOUT)
    spec = spec_for(bed, provider, 3)
    ordered_and_not_looked_after(bed, spec, provider)
    if killed:
        provider, spec = bed.open(timeout=TIMEOUT), replace(spec, is_repeated=True)
    bed.world.delete_conflicts = 1
    with pytest.raises(TransientError, match="task_state migrating"):
        provider.launch(spec)
    with pytest.raises(CapacityError, match="MachinesGone"):
        provider.launch(spec)
    assert bed.alive() == set()
    assert bed.stand_in.calls(CREATE) == 1


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "killed"])
def test_a_list_that_shows_a_part_of_a_call_says_nothing_of_the_rest(
    bed: StackBed, killed: bool
) -> None:
    provider = bed.open(timeout=TIMEOUT)
    spec = spec_for(bed, provider, 3)
    ordered_and_not_looked_after(bed, spec, provider)
    for server in list(bed.world.servers.values())[1:]:
        server["visible"] = time.time() + 1e6
    if killed:
        provider, spec = bed.open(timeout=TIMEOUT), replace(spec, is_repeated=True)
    with pytest.raises(UnsettledError, match="2 machine"):
        provider.launch(spec)


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "killed"])
def test_what_found_no_host_says_nothing_of_a_later_call_for_fewer(
    bed: StackBed, killed: bool
) -> None:
    """Both calls' machines have the same nodes; the second's are made and not listed."""
    provider = bed.open(timeout=TIMEOUT)
    spec = spec_for(bed, provider, 2)
    bed.limit(1)
    original = bed.stand_in.struck

    def struck(request: str):
        if request == CREATE and bed.stand_in.calls(CREATE) == 2:
            bed.world.visible_after = 1e6
            bed.stand_in.fail(Kind.RESET_AFTER, CREATE, 1)
        return original(request)

    bed.stand_in.struck = struck  # type: ignore[method-assign]
    try:
        with pytest.raises(TransientError):
            provider.launch(spec)
    finally:
        bed.stand_in.struck = original  # type: ignore[method-assign]
    assert len(bed.alive()) == 1
    if killed:
        provider, spec = bed.open(timeout=TIMEOUT), replace(spec, is_repeated=True)
    with pytest.raises(UnsettledError):
        provider.launch(spec)
    assert bed.stand_in.calls(CREATE) == 2


@pytest.mark.parametrize("placed", [True, False], ids=["had a host", "had none"])
def test_machines_of_a_lost_answer_that_have_ended(bed: StackBed, placed: bool) -> None:
    """They are over once they had a host; else a call for fewer may have been made as well."""
    provider = bed.open(timeout=TIMEOUT)
    spec = spec_for(bed, provider, 2)
    bed.stand_in.fail(Kind.RESET_AFTER, CREATE, 1)
    with pytest.raises(TransientError):
        provider.launch(spec)
    with bed.stand_in.lock:
        for number, one in bed.world.servers.items():
            host = "h1" if placed else ""
            bed.world.deleted[number] = one | {"status": "DELETED", "hostId": host}
        bed.world.servers.clear()
    expected = (CapacityError, "MachinesGone") if placed else (UnsettledError, "2 machine")
    with pytest.raises(expected[0], match=expected[1]):
        provider.launch(spec)
    assert bed.stand_in.calls(CREATE) == 1


def test_a_server_that_is_kept_for_a_while_after_its_end_is_gone(bed: StackBed) -> None:
    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    bed.world.servers[machine.id]["status"] = "SOFT_DELETED"
    assert provider.instances() == ()


def test_a_deletion_that_nova_has_taken_counts_before_it_shows(bed: StackBed) -> None:
    """A boot under way hides it for a while; should nova have forgotten it, it is asked again."""
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    (machine,) = provider.launch(spec)
    kept = dict(bed.world.servers[machine.id])
    provider.terminate([machine.id])
    bed.world.servers[machine.id] = kept
    assert [m.state for m in provider.instances()] == [InstanceState.STOPPING]
    with pytest.raises(CapacityError):
        provider.launch(spec)
    assert [m.state for m in bed.open().instances()] == [InstanceState.RUNNING]


def ordered(bed: StackBed) -> ProviderError:
    """The error of an order without a look-up before it."""
    with pytest.raises(ProviderError) as caught, translated("stack"):
        OpenStackApi(bed.settings(api_timeout=TIMEOUT)).call("compute", "POST", "/servers", {})
    return caught.value


def test_an_order_is_not_unsent_as_another_request_was_before(bed: StackBed) -> None:
    """It may be made while the SDK, or whoever calls us, deals with a connection that failed."""
    bed.stand_in.fail(Kind.RESET_BEFORE, CREATE)
    try:
        raise NotConnected("another one")  # noqa: TRY301
    except NotConnected:
        error = ordered(bed)
    assert isinstance(error, TransientError)
    assert error.code == "ConnectFailure"
    assert not is_refusal(error)


def test_a_disturbance_under_tls_after_the_order_is_no_refusal(
    bed: StackBed, tmp_path: Path
) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
             "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/v2.1"
        bed.login(compute_endpoint_override=url, verify=False)
        server = threading.Thread(target=_disturbed, args=(listener, context))
        server.start()
        error = ordered(bed)
        server.join()
        bed.login(compute_endpoint_override=url)
        server = threading.Thread(target=_disturbed, args=(listener, context))
        server.start()
        assert isinstance(ordered(bed), AuthError), "nobody vouches for that certificate"
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
    assert isinstance(error, TransientError), error
    assert not is_refusal(error)


def _disturbed(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Takes orders, and breaks each off with what is no record of TLS; ends with the first."""
    while True:
        try:
            raw, _ = listener.accept()
        except OSError:
            return
        with raw, suppress(OSError), context.wrap_socket(raw, server_side=True) as connection:
            request = connection.recv(65536)
            if request.startswith(b"POST"):
                os.write(connection.fileno(), b"no record of TLS at all")
                return
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
