"""The client of the agent: the provider's contract against a real agent, and every failure mapped."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from pathlib import Path

import pytest
from patience import eventually
from providers.local.bed import POOL, LocalBed, provider_at

from slurm_elastic.base.errors import AuthError, ProviderError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec, Market, Pool
from slurm_elastic.testing.contract import (
    FaultContract,
    LateFailureContract,
    LaunchContract,
    ScarceContract,
)

CLUSTER = Cluster(name="test", uuid="7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11")


@pytest.fixture
def place():
    path = Path(tempfile.mkdtemp(prefix="se-local-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def bed(place):
    made = LocalBed(place)
    yield made
    made.close()


class TestLocalLaunches(LaunchContract): ...


class TestLocalScarcity(ScarceContract): ...


class TestLocalLateFailures(LateFailureContract): ...


class TestLocalFaults:
    """The faults that a socket on this very host can have."""

    test_a_lost_answer = FaultContract.test_a_lost_answer_is_found_by_repeating_the_launch
    test_a_lost_answer_by_tag = FaultContract.test_a_lost_answer_is_found_by_tag
    test_silence = FaultContract.test_a_silent_cloud_blocks_no_call_for_longer_than_the_time_out


@pytest.fixture
def served(place):
    """The socket of an agent with room for two machines."""
    made = LocalBed(place, capacity=2)
    yield made.socket
    made.close()


def spec_of(provider, *nodes, generation="g1"):
    (offer,) = provider.offers(POOL)
    return LaunchSpec(generation=generation, pool=POOL, nodes=nodes, offer=offer, jobs=(5,))


def test_the_offer_is_the_pools_shape_at_the_sites_price_with_what_is_free(served):
    provider = provider_at(served)
    (offer,) = provider.offers(POOL)
    assert (offer.cpus, offer.memory, offer.price, offer.free) == (2, 900, 0.02, 2)
    assert offer.key == "here/slurmd/local/reserved"
    provider.launch(spec_of(provider, "n1"))
    assert provider.offers(POOL)[0].free == 1


def test_what_an_own_host_does_not_have_is_not_offered(served):
    provider = provider_at(served)
    fields = {f: getattr(POOL, f) for f in POOL.__struct_fields__}
    assert not provider.offers(Pool(**fields | {"markets": (Market.SPOT,)}))
    assert not provider.offers(Pool(**fields | {"zones": ("us-east-1a",)}))


def test_a_node_whose_last_machine_is_not_gone_may_be_tried_again(served):
    provider = provider_at(served)
    provider.launch(spec_of(provider, "n1"))
    with pytest.raises(TransientError, match="NodeBusy"):
        provider.launch(spec_of(provider, "n1", generation="g2"))


def test_a_node_that_is_not_the_clouds_is_an_error_of_no_special_kind(served):
    provider = provider_at(served)
    with pytest.raises(ProviderError, match="login1") as caught:
        provider.launch(spec_of(provider, "login1"))
    assert type(caught.value) is ProviderError


def test_an_agent_that_is_not_there_is_transient_and_named(place):
    with pytest.raises(
        TransientError,
        match=r"slurm-elastic-local at .*/none is not running \(No such file or directory\)$",
    ):
        provider_at(place / "none").instances()


def answering(place, answer):
    """A socket that reads one line and says ``answer``; None: it says nothing."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "odd"))
    listener.listen()

    def serve():
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as file:
            file.readline()
            if answer is None:
                file.readline()  # until the client gives up
            else:
                file.write(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return listener, thread


@pytest.mark.parametrize(
    ("answer", "error", "code"),
    [
        (None, TransientError, "Timeout"),
        (b"", TransientError, "BadAnswer"),
        (b"nonsense\n", TransientError, "BadAnswer"),
        (b'{"ok":false,"code":"NotPermitted","message":"no"}\n', AuthError, "NotPermitted"),
        (b'{"ok":false,"code":"InternalError","message":"x"}\n', TransientError, "InternalError"),
    ],
)
def test_odd_answers_are_one_of_the_errors(place, answer, error, code):
    listener, thread = answering(place, answer)
    with pytest.raises(error) as caught:
        provider_at(place / "odd", api_timeout=60.0 if answer is not None else 0.3).check()
    assert caught.value.code == code
    thread.join()
    listener.close()


@pytest.mark.parametrize(
    ("status", "free"),
    [
        (b'{"ok":true,"capacity":5,"used":3}', 2),
        (b'{"ok":true,"capacity":2,"used":3}', 0),
        (b'{"ok":true,"capacity":2,"used":2}', 0),
        (b'{"ok":true,"used":3}', None),
        (b'{"ok":true,"capacity":2}', None),
    ],
)
def test_what_is_free_is_what_the_agent_may_start_yet_where_it_says_so(place, status, free):
    listener, thread = answering(place, status + b"\n")
    fields = {f: getattr(POOL, f) for f in POOL.__struct_fields__}
    wide = Pool(**fields | {"instance_types": ("slurmd", "other"), "zones": ("local",)})
    offers = provider_at(place / "odd").offers(wide)
    assert [(one.instance_type, one.free) for one in offers] == [("slurmd", free), ("other", free)]
    thread.join()
    listener.close()


def test_a_pool_that_names_no_type_has_the_one_there_is(place):
    listener, thread = answering(place, b'{"ok":true}\n')
    fields = {f: getattr(POOL, f) for f in POOL.__struct_fields__}
    (offer,) = provider_at(place / "odd").offers(Pool(**fields | {"instance_types": ()}))
    assert offer.instance_type == "slurmd"
    thread.join()
    listener.close()


def test_nothing_to_end_needs_no_agent(place):
    provider_at(place / "none").terminate([])


def test_an_agent_that_takes_no_connection_keeps_nobody(place):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "odd"))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(place / "odd"))
            caught = []

            def ask():
                try:
                    provider_at(place / "odd", api_timeout=0.3).check()
                except TransientError as error:
                    caught.append(error)

            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            eventually(lambda: caught)
            asking.join()


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_a_user_who_is_not_slurmuser_gets_an_auth_error(served):
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(2)
        os.setuid(2)
        try:
            provider_at(served).check()
        except AuthError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
