"""Defects of providers, keys, tunnels and of what two heads share."""

from __future__ import annotations

from typing import Any

from slurm_elastic.cli.orders import key, key_machines
from slurm_elastic.cli.setting_up import init_make
from slurm_elastic.controller import holds
from slurm_elastic.features.network import key_rotation, tunnel_keys
from slurm_elastic.features.network.tunnels import TunnelsPart
from slurm_elastic.machine.hub.link import Link
from slurm_elastic.policies.repair import tunnel_addresses
from slurm_elastic.providers.base.hosts import host_rows, switched
from slurm_elastic.providers.base.hosts.host_rows import Removals
from slurm_elastic.providers.base.hosts.host_times import HostTimes
from slurm_elastic.providers.libvirt import domains
from slurm_elastic.providers.opennebula import requests
from slurm_elastic.providers.openstack import pages
from slurm_elastic.providers.openstack.provider import OpenStackProvider
from slurm_elastic.state import heads
from slurm_elastic.watch.doctor import two_heads
from tests.chaos.defects.registry import found_by
from tests.chaos.rewriting import rewrite


@found_by(
    "tests/cli/test_key.py::test_a_head_whose_command_does_half_of_its_work_gets_its_old_key_again"
)
def a_head_that_changed_half_keeps_the_new_key(_stage: Any) -> None:
    """No node understands the head after the next restart of munged."""
    rewrite(
        key._change,
        ("state = key_machines.take_head_back(ssh, old, head) or", "state ="),
    )


@found_by("tests/cli/test_key.py::test_a_rotation_taken_back_ends_with_the_earlier_key")
def a_rotation_is_taken_back_by_what_lies_there(_stage: Any) -> None:
    """A file of an earlier rotation is not the key of the head."""
    key_rotation._MAKE = key_rotation._MAKE.replace(
        'mv -f "$draft"', 'cp -p {target} {target}.before\nmv -f "$draft"'
    )
    back = (
        "cat >/dev/null; [ -e {target}.before ] || exit 0; mv {target}.before {target}\n{restart}"
    )
    rewrite(
        key_machines.take_machines_back,
        ("rotation.make(old_for)", f"rotation._run_everywhere({back!r}, old_for)"),
    )


@found_by("tests/cli/test_key.py::test_a_machine_that_cannot_be_taken_back_is_named")
def nobody_asks_who_could_not_be_taken_back(_stage: Any) -> None:
    """The command says that all use the old key."""
    rewrite(key_machines.take_machines_back, ("    if not wrong:", "    if True:"))


@found_by("tests/features/test_tunnels.py::test_a_key_that_wg_refuses_is_not_read_from_a_console")
def a_key_that_wg_refuses_is_a_key(_stage: Any) -> None:
    """It keeps every new machine of all clouds out."""
    rewrite(
        tunnel_addresses.is_public_key,
        ("and base64.b64encode(key_bytes).decode() == text", "and True"),
    )


@found_by(
    "tests/features/test_tunnels.py::test_no_machine_has_the_enrolment_key_of_another_as_its_own"
)
def a_machine_takes_anothers_enrolment_key(_stage: Any) -> None:
    """The list has one key twice, and the hub refuses the whole list."""
    rewrite(tunnel_keys.flaw_of, ("if key in enrolment_keys:", "if False:"))


@found_by(
    "tests/features/test_tunnels.py::test_the_key_is_of_the_launch_whose_enrolment_key_the_hub_has"
)
def a_key_is_recorded_for_the_earliest_launch(_stage: Any) -> None:
    """The later machine of the node is shut out when the earlier one ends."""
    admission = "self._admission()"
    rewrite(TunnelsPart.handed_in, (f"self._may_hand_in({admission})", f"{admission}.enrolling"))


@found_by("tests/state/test_state_files.py::test_the_other_head_knows_which_hosts_are_switched_on")
def one_head_alone_knows_its_hosts(_stage: Any) -> None:
    """After a takeover they stay on, lost to the cluster."""
    _keep_to_one_head("claims")


@found_by("tests/state/test_state_files.py::test_the_other_head_gives_a_launch_the_same_word")
def one_head_alone_knows_the_words_of_its_machines(_stage: Any) -> None:
    """Machines that boot in a takeover cannot enrol."""
    _keep_to_one_head("enrolment.secret")


def _keep_to_one_head(name: str) -> None:
    for names in ("SHARED", "SHARED_FILES"):
        setattr(heads, names, tuple(one for one in getattr(heads, names) if one != name))


@found_by("tests/providers/base/test_hosted.py::test_a_machine_that_was_moved_is_one_and_runs")
def a_machine_is_where_the_last_host_says(_stage: Any) -> None:
    """The disk of a machine that a person has moved is deleted while it runs."""
    host_rows.place_of = lambda rows: max(rows, key=lambda row: row.ended)


@found_by(
    "tests/providers/base/test_hosted.py::"
    "test_machines_that_cannot_be_removed_keep_no_disk_of_other_machines"
)
def the_same_five_removals_are_tried_for_ever(_stage: Any) -> None:
    """The disks of all others stay."""
    rewrite(
        Removals._due,
        ('    removable.sort(key=lambda i: failed_at.get(i, float("-inf")))\n', ""),
    )


@found_by(
    "tests/providers/base/test_switched.py::"
    "test_a_bmc_that_says_off_while_it_restarts_loses_no_host"
)
def one_off_of_a_bmc_ends_a_machine(_stage: Any) -> None:
    """BMCs say so while they restart."""
    switched.OFF_PROVEN_S = 0.0


@found_by(
    "tests/providers/base/test_switched.py::"
    "test_a_clock_that_is_set_neither_hurries_nor_delays_a_host"
)
def hosts_have_their_time_by_the_clock(_stage: Any) -> None:
    """A step of the clock cuts a clean shutdown, or loses the host."""
    HostTimes.age_s = lambda self, _host, _event, at, _bound: self._clock() - at  # type: ignore[method-assign]


@found_by(
    "tests/providers/openstack/test_instances.py::"
    "test_a_nova_that_gives_the_same_page_again_has_given_no_list"
)
def a_list_whose_pages_repeat_is_whole(_stage: Any) -> None:
    """Machines on the pages that never came count as gone."""
    rewrite(
        pages.marker_pages,
        (
            'raise TransientError(cloud, "RepeatedPage", "the cloud repeats a page of a list")',
            "return",
        ),
    )


@found_by(
    "tests/providers/openstack/test_contract.py::TestStackLateFailures::"
    "test_a_machine_that_fails_after_its_launch_is_ended"
)
def a_look_ends_machines(_stage: Any) -> None:
    """doctor and a dry run of the watchdog list, too."""
    OpenStackProvider.instances = OpenStackProvider.tidy  # type: ignore[method-assign]


@found_by(
    "tests/providers/opennebula/test_provider.py::"
    "test_a_machine_that_rewrites_its_own_attributes_stays_what_it_is"
)
def a_machine_says_itself_whose_it_is(_stage: Any) -> None:
    """Root on it makes it run for ever in no book."""
    requests.tags_in = lambda _, attributes: requests.SPELLING.read(attributes)


@found_by(
    "tests/cli/test_key.py::test_with_two_heads_a_command_must_say_how_the_other_head_gets_the_key"
)
def a_rotation_changes_one_of_two_heads(_stage: Any) -> None:
    """After a takeover the other head brings the old key."""
    rewrite(key._refuse, ("config.ha.directory is not None", "False"))


@found_by(
    "tests/watch/test_doctor_two_heads.py::"
    "test_two_heads_that_would_bring_different_keys_to_machines"
)
def doctor_compares_no_keys_of_two_heads(_stage: Any) -> None:
    """Machines have the key of the head that launched them."""
    two_heads._secrets = lambda *_: iter(())


@found_by(
    "tests/providers/libvirt/test_provider.py::TestEnds::test_a_machine_with_a_snapshot_is_removed_too"
)
def a_snapshot_keeps_a_machine_for_ever(_stage: Any) -> None:
    """Backup programs make one of every domain."""
    flag = "flags |= libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA"
    rewrite(domains.remove, (flag, "pass"))


@found_by("tests/machine/hub/test_calling.py::test_a_peer_that_wg_refuses_keeps_no_other_out")
def one_refused_peer_keeps_all_machines_out(_stage: Any) -> None:
    """wg refuses all peers of a command."""
    rewrite(Link._add, ("return self._add_one_by_one(additions)", "raise"))


@found_by(
    "tests/features/test_directives.py"
    "::test_a_node_whose_address_is_another_machines_gets_none_until_that_has_ended"
)
def a_machine_is_bought_at_anothers_address(_stage: Any) -> None:
    """It never joins, is paid until resume_timeout, and is bought again."""
    rewrite(holds.find_closed, ("{**_find_taken(site)}", "{}"))


@found_by(
    "tests/providers/openstack/test_making.py"
    "::test_the_secret_of_another_administrators_credential_stays"
)
def a_secret_is_removed_unproven(_stage: Any) -> None:
    """The services can end no machine, and nobody can read the secret again."""
    rewrite(
        init_make._remove_secret,
        ('if not maker.proves_gone(file.read_text(encoding="utf-8")):', "if False:"),
    )
