"""``policies.choose``: simulated on the cluster's own history in a process of its own, kept in a
file, explained, and given up when a person changes the policy.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config, configfile
from slurm_elastic.config import policy_choice as choices
from slurm_elastic.config.catalogue import from_state
from slurm_elastic.config.policy_choice import PolicyChoice, candidates, own_policy
from slurm_elastic.config.pool_rules import fail_safe, rules_of
from slurm_elastic.config.sections.policies import Choose, SitePolicies
from slurm_elastic.features.growth import policy_chooser
from slurm_elastic.features.growth.policy_chooser import PolicyChooser, outcomes_of
from slurm_elastic.model.memory import Decision
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.policies.planning.choice import PolicyOutcome
from slurm_elastic.simulate.studies import policy_choice as simulator
from slurm_elastic.slurm.client.accounting import FIELDS
from tests.controller.world import make_config
from tests.outside import site_text

AMONG = ("on_demand+idle(60)", "slurm+idle(60)+max_idle")
OWN = "slurm+idle(86400)"
NOW = 1_800_000_000.0
DAY = 86400.0


def plain_config(state: Path, **choose: Any) -> Config:
    """One public pool. Its own policy keeps machines for a day, so that few jobs wait for a boot."""
    settings = Choose(**{"among": AMONG, "max_wait": 600.0, **choose})
    policies = SitePolicies(growth="slurm", release="idle(86400)", choose=settings)
    both = make_config(state)
    return make_config(state, policies=policies, clouds=both.clouds[1:], pools=both.pools[1:])


def rows(jobs: int = 100) -> list[Mapping[str, str]]:
    """A job of an hour every four hours, on two processors."""
    return [
        {
            "JobIDRaw": str(n), "User": "ann", "Account": "physics", "Partition": "pub",
            "Submit": str(int(NOW) + 14_400 * n), "Eligible": str(int(NOW) + 14_400 * n),
            "ElapsedRaw": "3600", "TimelimitRaw": "90", "ReqCPUS": "2", "AllocCPUS": "2",
            "ReqMem": "", "ReqTRES": "cpu=2", "State": "COMPLETED",
        }
        for n in range(jobs)
    ]  # fmt: skip


class Site:
    def __init__(self, plain: Config) -> None:
        self.plain, self.now, self.changes = plain, NOW, 0
        self.decisions: list[Decision] = []
        self.chooser = self.restarted()

    def restarted(self) -> PolicyChooser:
        self.chooser = PolicyChooser(
            self.plain, self.decisions.append, self._change, lambda: self.now
        )
        return self.chooser

    def _change(self) -> None:
        self.changes += 1

    @property
    def used(self) -> str:
        return own_policy(from_state(self.plain, self.now).policies)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The history is at hand; the simulation is real, but in this process."""

    def simulated(_timeout: float, _advice: str, function: object, plain: Config, _now: float):  # type: ignore[no-untyped-def]
        assert function is outcomes_of
        return simulator.outcomes(plain, rows(), None, candidates(plain.policies), 60.0)

    monkeypatch.setattr(policy_chooser, "run_within", simulated)
    return Site(plain_config(tmp_path))


def test_a_cheaper_policy_is_chosen_kept_and_explained(site: Site) -> None:
    site.chooser.check()
    assert site.changes == 1
    assert site.used in AMONG
    (decision,) = site.decisions
    assert set(decision.subjects) == {"pool:burst"}
    text = str(decision.reason)
    assert f"policy {site.used} from now on: the cheapest with a mean wait of at most" in text
    assert "100 jobs of the last weeks" in text
    assert text.count(" mean wait") == 4
    rules = rules_of(from_state(site.plain, NOW), site.plain.pools[0])
    assert rules.release == Idle(60)


def test_a_daemon_that_ended_meanwhile_chooses_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = policy_chooser.run_within

    def ended(*question: Any) -> object:
        site.chooser.stop()
        return simulated(*question)

    monkeypatch.setattr(policy_chooser, "run_within", ended)
    site.chooser.check()
    assert choices.kept(site.plain) is None
    assert (site.changes, site.decisions) == (0, [])


def test_it_stays_until_it_is_time_and_while_nothing_changes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.chooser.check()
    first = choices.kept(site.plain)
    assert first is not None
    monkeypatch.setattr(policy_chooser, "run_within", lambda *_: pytest.fail("it is not time"))
    site.now += DAY / 2
    site.restarted().check()
    monkeypatch.undo()
    monkeypatch.setattr(
        policy_chooser, "run_within",
        lambda *_: tuple(
            PolicyOutcome(policy=p, cost=100.0, wait=60.0, jobs=100) for p in (OWN, *AMONG)
        ),
    )  # fmt: skip
    site.now += DAY
    site.restarted().check()
    again = choices.kept(site.plain)
    assert again is not None
    assert (again.policy, again.chosen_at) == (first.policy, first.chosen_at)
    assert again.checked_at == site.now
    assert (site.changes, len(site.decisions)) == (1, 1)


def test_a_person_who_changes_the_file_is_obeyed(site: Site) -> None:
    site.chooser.check()
    plain = site.plain
    for policies in (
        replace(plain.policies, growth="ratio"),
        replace(plain.policies, release=None),
        replace(plain.policies, choose=Choose(among=("ratio+idle(5)",))),
        replace(plain.policies, choose=Choose()),
    ):
        changed = replace(plain, policies=policies)
        assert from_state(changed, NOW) == changed
    own_pool = replace(plain.pools[0], policies=replace(plain.pools[0].policies, growth="ratio"))
    used = from_state(replace(plain, pools=(own_pool,)), NOW)
    assert str(rules_of(used, own_pool).growth.__struct_config__.tag) == "ratio"


def test_suspend_time_comes_after_every_candidate(tmp_path: Path) -> None:
    plain = plain_config(tmp_path)
    longest = fail_safe(plain, plain.clouds[0])
    assert longest > 86400
    choices.keep(
        plain,
        PolicyChoice(policy=AMONG[0], own=OWN, checked_at=NOW, chosen_at=NOW, reason="cheap"),
    )
    assert own_policy(from_state(plain, NOW).policies) == AMONG[0]
    assert fail_safe(from_state(plain, NOW), plain.clouds[0]) == longest


@pytest.mark.parametrize("content", [b"", b"{", b'{"policy": 7}', b"x" * 200_000])
def test_a_damaged_file_is_no_choice(content: bytes, tmp_path: Path) -> None:
    plain = plain_config(tmp_path)
    choices.path_of(plain).write_bytes(content)
    assert from_state(plain, NOW) == plain


def test_if_it_cannot_be_simulated_the_present_policy_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_short(*_: object) -> None:
        raise ConfigError("found 3 jobs, expected at least 20")

    monkeypatch.setattr(policy_chooser, "run_within", too_short)
    for _ in range(3):
        site.chooser.check()
    assert (site.used, site.changes, site.decisions) == (OWN, 0, [])
    texts = [record.getMessage() for record in caplog.records]
    assert (
        texts.count(
            "policies cannot be compared, the present one stays: found 3 jobs, expected at least 20"
        )
        == 1
    )


def test_a_short_history_is_not_simulated(tmp_path: Path) -> None:
    plain = plain_config(tmp_path)
    with pytest.raises(ConfigError, match="found 3 jobs, expected at least 20"):
        simulator.outcomes(plain, rows(3), None, AMONG, 60.0)
    with pytest.raises(ConfigError, match="0 of 2 policies took all the time"):
        simulator.outcomes(plain, rows(), None, AMONG, -1.0)


# with the real process, and a stand-in for Slurm's commands

PROGRAM = """#!{python}
import sys
words = sys.argv[1:]
name = sys.argv[0].rpartition("/")[2]
if "--version" in words:
    print("slurm 24.05.3")
elif name == "sacct":
    print(open({rows!r}).read(), end="")
elif "nodes" in words or "node" in words:
    print('{{"nodes": []}}')
else:
    print('{{"jobs": []}}')
"""


def stand_in(place: Path) -> Path:
    """The directory of Slurm's commands, with the jobs of ``rows`` in slurmdbd."""
    commands, listed = place / "bin", place / "rows"
    commands.mkdir()
    listed.write_text("\n".join("|".join(row[field] for field in FIELDS) for row in rows()) + "\n")
    for name in ("sacct", "scontrol", "squeue", "sinfo"):
        (commands / name).write_text(PROGRAM.format(python=sys.executable, rows=str(listed)))
        (commands / name).chmod(0o755)
    return commands


def test_the_bounded_process_reads_slurmdbd_and_simulates(tmp_path: Path) -> None:
    commands = stand_in(tmp_path)
    plain = plain_config(tmp_path)
    (tmp_path / "slurm.conf").write_text("ClusterName=alps\n")
    slurm = replace(plain.slurm, bin_dir=str(commands), conf=str(tmp_path / "slurm.conf"))
    plain = replace(plain, slurm=slurm)
    site = Site(plain)
    began_at = time.monotonic()
    site.chooser.check()
    print(f"three policies on 100 jobs: {time.monotonic() - began_at:.1f} s")
    assert site.changes == 1
    assert site.used in AMONG


def test_the_daemon_imports_no_simulator() -> None:
    code = (
        "import sys, slurm_elastic.cli.services.daemon\n"
        "print(any(name.startswith('slurm_elastic.simulate') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_the_file_says_is_checked() -> None:
    def text(among: str) -> str:
        return site_text(f"policies: {{growth: on_demand, choose: {{among: [{among}]}}}}")

    configfile.parse(text("'slurm+idle(60)', 'bursts(waste=auto)+idle(60)+max_idle'"), "site.yaml")
    for among, why in (
        ("burst", "there is no 'burst', expected one of slurm"),
        ("slurm+late", "there is no 'late', expected one of idle"),
        ("bursts+on_demand", "bursts start machines ahead of need"),
    ):
        with pytest.raises(ConfigError) as caught:
            configfile.parse(text(among), "site.yaml")
        assert f"policies.choose.among[0]: found '{among}'" in str(caught.value)
        assert why in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ("max_wait: 5m", "among: found no policies, expected policies such as [on_demand+"),
        ("among: [slurm], history: 1s", "history: found '1s' (text), expected a duration"),
        ("among: [slurm], interval: 1s", "interval: found '1s' (text), expected a duration"),
    ],
)
def test_keys_that_would_choose_nothing_or_without_end_are_refused(keys: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configfile.parse(site_text(f"policies: {{choose: {{{keys}}}}}"), "site.yaml")
    assert f"policies.choose.{error}" in str(caught.value)
