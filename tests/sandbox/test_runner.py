"""The runner's steps: from what the cloud has to what runs here."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_elastic.machine.local import local_processes
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.sandbox.processes import SlurmdMachines
from slurm_elastic.sandbox.runner import Runner
from slurm_elastic.sandbox.seen import CloudMachine


class QuietLayout(Layout, frozen=True, kw_only=True):
    """Machines whose slurmd is a sleeping script."""

    def machine(self, name, node):
        machine = super().machine(name, node)
        fields = {f: getattr(machine, f) for f in machine.__struct_fields__}
        return local_processes.SlurmdSettings(**fields | {"slurmd": str(self.dir / "slurmd")})


@pytest.fixture
def layout(tmp_path):
    slurmd = tmp_path / "slurmd"
    slurmd.write_text("#!/bin/sh\nexec sleep 1000\n")
    slurmd.chmod(0o755)
    (tmp_path / "log").mkdir()
    (tmp_path / "run").mkdir()
    made = QuietLayout(dir=tmp_path)
    yield made
    machines = SlurmdMachines(made.machines)
    for name in list(machines.ids()):
        machines.power_off(name)


def seen(name="i-1", node="pub1", state="running", launched=100.0):
    return CloudMachine(id=name, node=node, state=state, launched=launched)


def alive(layout):
    machines = SlurmdMachines(layout.machines)
    return {machines.get(n).machine.node for n in machines.ids() if machines.alive(n)}


def test_a_machine_comes_up_when_its_boot_time_has_passed(layout):
    runner = Runner(layout, boot_seconds=10.0)
    runner.step([seen(state="pending")], now=109.9)
    assert alive(layout) == set()
    runner.step([seen()], now=110.0)
    assert alive(layout) == {"pub1"}


def test_a_machine_terminated_while_it_boots_never_comes_up(layout):
    runner = Runner(layout, boot_seconds=10.0)
    runner.step([seen(state="pending")], now=105.0)
    runner.step([seen(state="shutting-down")], now=111.0)
    runner.step([seen(state="terminated")], now=112.0)
    assert alive(layout) == set()


@pytest.mark.parametrize("later", [[], [seen(state="terminated")], [seen(state="shutting-down")]])
def test_a_machine_that_is_gone_is_powered_off(layout, later):
    runner = Runner(layout, boot_seconds=0.0)
    runner.step([seen(), seen("i-2", "pub2")], now=200.0)
    assert alive(layout) == {"pub1", "pub2"}
    runner.step([*later, seen("i-2", "pub2")], now=201.0)
    assert alive(layout) == {"pub2"}


def test_a_restarted_runner_starts_nothing_twice(layout):
    Runner(layout, boot_seconds=0.0).step([seen()], now=200.0)
    before = SlurmdMachines(layout.machines).get("i-1")
    Runner(layout, boot_seconds=0.0).step([seen()], now=201.0)
    assert SlurmdMachines(layout.machines).get("i-1") == before


def test_a_runner_killed_just_before_a_start_starts_that_machine_once(layout):
    Runner(layout, boot_seconds=0.0).step([seen()], now=200.0)
    machines = SlurmdMachines(layout.machines)
    unrecorded = machines.get("i-1").process
    path = layout.machines / "i-1.json"
    record = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(record | {"process": None}))
    Runner(layout, boot_seconds=0.0).step([seen()], now=201.0)
    assert alive(layout) == {"pub1"}
    assert not local_processes.alive(unrecorded)


def test_a_machine_whose_slurmd_crashed_is_not_started_again(layout):
    runner = Runner(layout, boot_seconds=0.0)
    runner.step([seen()], now=200.0)
    process = SlurmdMachines(layout.machines).get("i-1").process
    local_processes.stop(process, 5.0)
    runner.step([seen()], now=201.0)
    assert alive(layout) == set()


def test_some_machines_never_boot_and_some_name_no_node(layout):
    runner = Runner(layout, boot_seconds=0.0, never_boot=["pub1"])
    runner.step([seen(), seen("i-2", ""), seen("i-3", "pub3")], now=1000.0)
    assert alive(layout) == {"pub3"}


def test_static_machines_are_not_the_clouds_to_power_off(layout):
    machines = SlurmdMachines(layout.machines)
    machines.start(layout.machine("st1", "st1"))
    Runner(layout, boot_seconds=0.0).step([], now=1000.0)
    assert alive(layout) == {"st1"}


def test_power_off_from_the_records_alone_and_twice(layout):
    machines = SlurmdMachines(layout.machines)
    process = machines.start(layout.machine("i-9", "pub9"))
    assert Path(f"/proc/{process.pid}").exists()
    for _ in range(2):
        SlurmdMachines(layout.machines).power_off("i-9")
    assert not local_processes.alive(process)


def test_each_cloud_ends_only_its_own_machines(layout):
    ec2 = Runner(layout, boot_seconds=0.0)
    nebula = Runner(layout, boot_seconds=0.0, prefix="one-")
    ec2.step([seen()], now=1000.0)
    nebula.step([seen("one-0", "neb1"), seen("one-1", "neb2", state="off")], now=1000.0)
    assert alive(layout) == {"pub1", "neb1"}
    ec2.step([], now=1001.0)
    assert alive(layout) == {"neb1"}
    nebula.step([], now=1002.0)
    assert alive(layout) == set()
