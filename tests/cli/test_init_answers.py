"""``init``: which answers are taken, what is written for them, and where in a file that is there."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.account import acting_as
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.operate.console import say
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.openstack import found as openstack
from slurm_elastic.setup import compose, merge, reach
from slurm_elastic.setup.edit import append, put
from slurm_elastic.setup.questions import Answers, Earlier, answered, first, questions
from slurm_elastic.setup.site import SiteFacts

SITE = SiteFacts(
    conf="/etc/slurm/slurm.conf", cluster="small", user="slurm", head="head", partition="batch",
    cpus=4, memory=7800, nodes=4, max_time=None, default_time=None, auth="munge",
    accounting="slurmdbd, accounts checked", accounts_checked=True,
    taken=frozenset({"n1", "batch"}),
)  # fmt: skip
LAB = Found(
    name="lab", provider="fake", location=Location.ON_PREMISES, what="a lab", usable=True, joins=True,
    keys={"types": {"small": {"cpus": 4, "memory": "8G", "price": 0}}},
)  # fmt: skip
SHOP = replace(
    LAB, name="shop", what="a shop", location=Location.PUBLIC, spot=True,
    keys={"types": {"small": {"cpus": 4, "memory": "8G", "price": 1}}},
)  # fmt: skip
RACK = Found(
    name="rack", provider="redfish", location=Location.ON_PREMISES, what="BMCs", usable=True,
    keys={"credentials_file": "/etc/slurm-elastic/bmc.json"}, sized=True, by_node=True,
)  # fmt: skip
NEBULA = replace(LAB, name="nebula", keys={}, types=(
    KnownType(name="worker", cpus=2, memory=4096), KnownType(name="ant", cpus=900, memory=64),
))  # fmt: skip


def given(found: tuple[Found, ...], texts: Mapping[str, str]) -> Answers:
    """The answers to all questions, the default of each that ``texts`` lacks."""

    def rules(so_far: Answers) -> None:
        compose.checked(SITE, found, so_far, "new.yaml")

    answers = Answers()
    for question in first(found, Earlier()):
        text = texts.get(question.key, question.default)
        answers = answered(question, text, answers, rules)
    for question in questions(SITE, compose.named(found, answers)):
        text = texts.get(question.key, question.default)
        answers = answered(question, text, answers, rules)
    return answers


def written(found: tuple[Found, ...], texts: Mapping[str, str]) -> Config:
    return configfile.parse(compose.checked(SITE, found, given(found, texts), "new"), "new.yaml")


HOST = "https://b1/redfish/v1/Systems/1"


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("clouds", "moon", "expected one or several of lab, shop, rack"),
        ("hosts", "h1=http://10.0.0.9/redfish/v1/Systems/1", "expected a URL as https://bmc1/"),
        ("hosts", f"DEFAULT={HOST}", "DEFAULT"),
        ("hosts", f"n1={HOST}", "n1 is already a node in slurm.conf"),
        ("hosts", f"h1={HOST} h1={HOST}2", "expected each host once"),
        ("hosts", f"h1={HOST} h2={HOST}", "hosts"),
        ("accounts", "a" * 300, "accounts"),
        ("cap", "lots", "expected dollars an hour, or none"),
        ("cap", "0", "dollars_per_hour"),
        ("cap", "-1", "dollars_per_hour"),
        ("cap", "0.25", "expected at least 1, the price of one small in pool shop"),
        ("cap", "inf", "dollars_per_hour"),
        ("shape", "8x32", "did you mean 8x32G?"),
        ("shape", "0x8G", "cpus"),
        ("max_time", "1440", "1440 are minutes to Slurm and seconds to us: expected a unit"),
        ("max_time", "30s", "max_time"),
        ("checkpoints", "/etc/../", "expected the absolute path of a directory"),
        ("checkpoints", "//", "expected the absolute path of a directory"),
        ("checkpoints", "/dev/null", "expected the absolute path of a directory"),
    ],
)
def test_an_answer_that_the_configuration_refuses_is_none(key: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as told:
        given((LAB, SHOP, RACK), {key: text})
    assert "new.yaml" not in str(told.value)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("hosts", f"h1={HOST}, h2={HOST}2", {"h1": HOST, "h2": f"{HOST}2"}),
        ("accounts", "12345 true null", ("12345", "true", "null")),
        ("cap", "1000000", 1e6),
        ("cap", "1e7", 1e7),
        ("cap", "1.25", 1.25),
        ("head", "NONE", ""),
        ("head", "head.example.org.", "head.example.org"),
        ("checkpoints", "/shared//ckpt/", "/shared/ckpt"),
    ],
)
def test_an_answer_is_written_as_it_is_meant(key: str, text: str, value: object) -> None:
    found = (LAB, SHOP, RACK)
    answers = given(found, {key: text})
    assert getattr(answers, key) == value
    config = written(found, {key: text})
    if key == "accounts":
        assert config.cloud("shop").allow is not None
        assert config.cloud("shop").allow.accounts == value  # type: ignore[union-attr]
    if key == "cap":
        assert config.limits.dollars_per_hour == value


def test_who_may_spend_money_says_nothing_of_clouds_of_the_sites_own() -> None:
    config = written((LAB, SHOP), {"accounts": "physics"})
    assert config.who_of(config.cloud("shop")).accounts == ("physics",)
    assert not config.who_of(config.cloud("lab")).anybody


def test_a_question_follows_from_the_chosen_clouds() -> None:
    of_lab = {one.key for one in questions(SITE, [LAB])}
    assert not of_lab & {"accounts", "cap", "spot", "hosts"}
    assert {one.key for one in questions(SITE, [SHOP])} >= {"accounts", "cap", "spot"}


def test_a_rack_without_hosts_is_left_out_and_is_no_rehearsal() -> None:
    answers = given((LAB, RACK), {})
    assert [one.name for one in compose.chosen((LAB, RACK), answers)] == ["lab"]
    assert "rack is left out: no host of it is named." in compose.differs((LAB, RACK), answers)
    with pytest.raises(ValueError, match="rack needs at least one host"):
        given((LAB, RACK), {"clouds": "rack"})


def test_a_shape_is_one_that_the_clouds_have() -> None:
    answers = given((NEBULA,), {})
    assert answers.size == (2, 4096)  # not the site's own 4x8G
    with pytest.raises(ValueError, match="no type of nebula has 4 cpus and 8G; the nearest is"):
        given((NEBULA,), {"shape": "4x8G"})
    small = replace(NEBULA, name="boxes", sized=True, types=NEBULA.types[:1])
    assert given((small,), {}).size == (2, 4096)
    told = list(compose.differs((small,), given((small,), {"shape": "2x80G"})))
    assert told == ["A node of boxes gets 2x4G: no host there has more."]


THERE = """\
# mine
cluster: {name: small}
slurm: {conf: /etc/slurm/slurm.conf}
allow: {max_time: 1d}
# limits: {dollars_per_hour: 5}    # the cap

clouds:
  - name: lab    # a lab
    provider: fake
    location: on-premises
    types: {small: {cpus: 4, memory: 8G, price: 0}}
  # a remark

pools:
  - {name: lab, cloud: lab, nodes: 'lab-[1-2]', cpus: 4, memory: 8G, instance_types: [small]}
"""


def merged(text: str, clouds: tuple[Found, ...] = (), **changes: object) -> str:
    before = merge.earlier(configfile.parse(text, "old.yaml")).answers
    answers = replace(before, cpus=4, memory=8192, **changes)
    return merge.ConfigMerge(text, "old.yaml", clouds, SITE, answers).text


@pytest.mark.parametrize(("answer", "expected"), [("", ("default",)), ("no", ())])
def test_jobs_may_name_the_default_partition_unless_the_site_says_no(
    answer: str, expected: tuple[str, ...]
) -> None:
    site = replace(SITE, has_default_partition=True)
    answers = given((LAB,), {"clouds": "lab"})
    (question,) = [one for one in questions(site, [LAB]) if one.key == "default_partition"]
    answers = answered(question, answer or question.default, answers, lambda _: None)
    config = configfile.parse(compose.checked(site, (LAB,), answers, "new"), "new.yaml")
    assert config.who_of(config.cloud("lab")).partitions == expected
    assert not config.who_of(config.cloud("lab")).anybody


def test_a_site_without_a_default_partition_is_not_asked_about_it() -> None:
    assert "default_partition" not in [one.key for one in questions(SITE, [LAB])]


def test_an_existing_file_gets_the_word_only_by_an_answer() -> None:
    site = replace(SITE, has_default_partition=True)
    earlier = merge.earlier(configfile.parse(THERE, "old.yaml"))
    (question,) = [one for one in questions(site, [], earlier) if one.key == "default_partition"]
    assert question.default == "no"
    text = merged(THERE, default_partition=True)
    assert configfile.parse(text, "new").allow.partitions == ("default",)
    again = merge.earlier(configfile.parse(text, "old.yaml"))
    assert "default_partition" not in [one.key for one in questions(site, [], again)]
    assert merged(text) == text


def test_a_public_cloud_that_is_added_shuts_none_of_the_sites_own() -> None:
    config = configfile.parse(merged(THERE, (SHOP,), accounts=("physics",), cap=4.0), "new")
    assert not config.who_of(config.cloud("lab")).anybody
    assert config.who_of(config.cloud("shop")).accounts == ("physics",)


def test_a_list_that_holds_for_others_too_is_left_to_a_person() -> None:
    text = merged(THERE, (SHOP,), accounts=("physics",)).replace("{max_time", "{qos: [q], max_time")
    changed = merged(text, accounts=("bio",))
    assert "    allow: {accounts: [bio]}" in changed
    alone = changed.replace("    allow: {accounts: [bio]}\n", "").replace(
        "qos: [q]", "accounts: [bio]"
    )
    with pytest.raises(ConfigError, match="also applies to your own clouds"):
        merged(alone, accounts=())


def test_values_go_where_they_stand_and_leave_nothing_behind() -> None:
    changed = merged(THERE, cap=4.0, head="10.0.0.1", checkpoints="/shared")
    assert "\nlimits: {dollars_per_hour: 4}\n" in changed
    assert "# limits" not in changed
    again = merged(changed, cap=None, head="", checkpoints="", max_time=None)
    assert again == THERE.replace("allow: {max_time: 1d}\n", "").replace(
        "# limits: {dollars_per_hour: 5}    # the cap\n", ""
    )


@pytest.mark.parametrize(
    "who",
    ['"allow": {max_time: 1d}', "allow:\n  max_time: 1d   # a day", "allow: {\n  max_time: 1d }"],
)
def test_a_section_may_be_written_in_any_way(who: str) -> None:
    text = merged(THERE.replace("allow: {max_time: 1d}", who), max_time=7200.0)
    assert configfile.parse(text, "new").allow.max_time == 7200.0
    assert text.count("max_time") == 1
    assert "# a day" in text or "# a day" not in who


def test_a_to_do_of_an_older_cloud_is_no_flaw_of_an_answer() -> None:
    old = "  - {name: one, provider: aws, location: public, region: TODO, image: TODO, "
    old += "types: {m: {cpus: 4, memory: 8G, price: 1}}}\n"
    there = THERE.replace("  # a remark\n", old)
    answers = replace(
        merge.earlier(configfile.parse(there, "old.yaml", whole=False)).answers,
        clouds=("shop",), groups=("users",), cap=4.0, cpus=4, memory=8192,
    )  # fmt: skip
    text = merge.ConfigMerge(there, "old.yaml", (SHOP,), SITE, answers).text
    config = configfile.parse(text, "new", whole=False)
    assert [cloud.name for cloud in config.clouds] == ["lab", "one", "shop"]
    with pytest.raises(ConfigError, match=r"new:\d+: clouds\[1\] \(one\)\.image: to do"):
        configfile.parse(text, "new")


def test_clouds_are_added_to_lists_in_a_line() -> None:
    flat = (
        "cluster: {name: small}\nclouds: [{name: lab, provider: fake, location: on-premises, "
        "types: {s: {cpus: 4, memory: 8G, price: 0}}}]\npools: [{name: lab, cloud: lab, "
        "nodes: 'lab-[1-2]', cpus: 4, memory: 8G, instance_types: [s]}]  # mine\n"
    )
    text = merged(flat, (SHOP,))
    assert [cloud.name for cloud in configfile.parse(text, "new").clouds] == ["lab", "shop"]
    assert text.endswith("]  # mine\n")


def test_text_is_edited_and_kept() -> None:
    assert put("a: {b: 1, c: 2}  # x\n", ("a", "b"), None) == "a: {c: 2}  # x\n"
    assert put("a: {b: 1, c: 2}\n", ("a", "c"), None) == "a: {b: 1}\n"
    assert put("z: 1\na: {b: 1}  # x\nc: 2\n", ("a", "b"), None) == "z: 1\nc: 2\n"
    assert (
        put("a:\n  b: [1]\n  # end\n", ("a", "c"), ["no"]) == "a:\n  b: [1]\n  c: ['no']\n  # end\n"
    )
    assert put("a:\n- b:\n  - 1\n  - 2\nc: 1\n", ("a", 0, "b"), [3]) == "a:\n- b: [3]\nc: 1\n"
    assert put("a:\n  b: 1\nc:\n- 1\n", ("d",), 2) == "a:\n  b: 1\nc:\n- 1\nd: 2\n"
    assert put("a:\n  b: |\n    x\nc: {}\n", ("a", "d"), 2) == "a:\n  b: |\n    x\n  d: 2\nc: {}\n"
    assert append("a:\n- b: 1\n  # end\n\nc: 1", "a", ["  - b: 2"]) == (
        "a:\n- b: 1\n  # end\n- b: 2\n\nc: 1"
    )


def test_a_name_or_group_that_this_host_does_not_know_is_doubted() -> None:
    nothing = Answers()
    assert reach.doubt(nothing, Answers(head="127.0.0.1:6817")) == ""
    assert "cannot resolve 7d" in reach.doubt(nothing, Answers(head="7d"))
    assert reach.doubt(nothing, Answers(groups=("root",))) == ""
    assert reach.doubt(nothing, Answers(groups=("no-such",))) == "this host has no group no-such"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")
def test_root_finds_no_cloud_by_a_file_that_slurm_user_may_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "one_auth"
    secret.write_text("a:b")
    secret.chmod(0o600)
    with acting_as("nobody"), pytest.raises(PermissionError):
        secret.read_text()
    assert secret.read_text() == "a:b"
    one = replace(LAB, reads={str(secret): "install -o {user} {path}"})
    told = reach._check_access(one, "nobody")
    assert not told.usable
    assert told.enable == (f"SlurmUser nobody may not use {secret}: install -o nobody {secret}")
    assert reach._check_access(one, "root").usable


def test_a_file_of_clouds_that_is_broken_is_told(tmp_path: Path) -> None:
    file = tmp_path / "clouds.yaml"
    file.write_text("clouds: [}\n")
    place = SearchPlace(home=tmp_path, environment={"OS_CLIENT_CONFIG_FILE": str(file)})
    (one,) = openstack.found(place)
    assert (one.usable, one.lacking) == (False, True)
    assert one.what == f"projects in {file}"
    assert one.enable == "correct it: it cannot be read (line 1)"


def test_a_cloud_that_is_found_again_has_the_head_asked_for_again() -> None:
    there = configfile.parse(THERE, "old.yaml")
    assert not merge.earlier(there).joins
    assert merge.earlier(there, (LAB,)).joins


def test_at_a_terminal_sentences_break_between_words_and_lines_to_copy_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    words, line = "a sentence that is too long for one row", f"    {'copy me ' * 6}".rstrip()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    say(f"{words}\n{line}")
    rows = [row.rstrip() for row in capsys.readouterr().out.splitlines()]
    assert rows == ["a sentence that is too long", "for one row", line]
