"""A machine's user data: parts that cloud-init knows, in one document, none too long."""

from __future__ import annotations

import gzip
import random
import subprocess
from email import message_from_string
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.providers.base.user_data import (
    Form,
    compose,
    facts_program,
    kind_of,
    multipart,
    program,
    read_part,
    read_parts,
    read_user_data,
)

BLANK_FIRST = Path(__file__).parents[2] / "data" / "config" / "blank-first-line.cloud-config"

PARTS = ("#!/bin/sh\necho one\n\n", "#cloud-config\na: b\n", "## template: jinja\nx")


@pytest.fixture
def form(tmp_path: Path) -> Form:
    path = tmp_path / "boothook.py"
    path.write_text(
        '"""What it is for.\n"""\nimport os\nFACTS: Dict[str, str] = {}  # noqa: UP006\nprint(FACTS)\n'
    )
    return Form(path, max_bytes=2000, reserved_bytes=500, limited_by="the cloud")


def unpacked(data: bytes) -> str:
    return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()


def test_each_part_has_its_type_and_its_place() -> None:
    found = message_from_string(multipart(PARTS)).get_payload()
    assert isinstance(found, list)
    kinds = ["text/x-shellscript", "text/cloud-config", "text/jinja2"]
    assert [part.get_content_type() for part in found] == kinds
    assert [kind_of(part) for part in PARTS] == kinds
    assert [str(part.get_payload()).strip() for part in found] == [p.strip() for p in PARTS]


def test_the_program_has_its_facts_and_not_what_only_its_readers_need(form: Form) -> None:
    text = program({"cluster": "site"}, form)
    assert text == "import os\nFACTS = {'cluster': 'site'}\nprint(FACTS)\n"
    whole = unpacked(compose({"cluster": "site"}, "n[1-3]", PARTS, form))
    assert whole.startswith("Content-Type: multipart/mixed")
    first, *others = message_from_string(whole).get_payload()  # type: ignore[misc]
    assert "FACTS = {'cluster': 'site', 'nodes': 'n[1-3]'}" in str(first)
    assert first.get_content_type() == "text/cloud-boothook"  # type: ignore[union-attr]
    assert len(others) == len(PARTS)


def noise(size: int) -> str:
    """Text that packs badly."""
    chance = random.Random(1)
    return "".join(chr(chance.randrange(33, 127)) for _ in range(size))


def test_it_is_packed_where_it_leaves_no_room_for_ours(form: Form) -> None:
    part = "#!/bin/sh\n" + "x" * 100
    whole = len(compose({}, "", (part,), form))
    for most, packed in (
        (whole + form.reserved_bytes, False),
        (whole + form.reserved_bytes - 1, True),
    ):
        exact = Form(form.program, most, form.reserved_bytes, form.limited_by)
        found = compose({}, "", (part,), exact)
        assert found.startswith(b"\x1f\x8b") is packed
        assert compose({}, "", (part,), exact) == found, "the same bytes each time"
        assert "x" * 100 in unpacked(found)


def test_nodes_are_left_out_where_they_do_not_fit(form: Form) -> None:
    nodes = noise(1200)
    whole = len(compose({}, nodes, (), Form(form.program, 10_000, 9_900, form.limited_by)))
    for most, there in ((whole, True), (whole - 1, False)):
        found = unpacked(
            compose({}, nodes, (), Form(form.program, most, most - 100, form.limited_by))
        )
        assert ("'nodes'" in found) is there


def test_parts_that_leave_no_room_are_a_mistake_that_names_the_file(
    form: Form, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.write_text("#!/bin/sh\n" + noise(1000))
    with pytest.raises(ConfigError) as caught:
        read_parts(str(site), "aws", "", Form(form.program, 600, 100, "EC2"))
    text = str(caught.value)
    assert text.startswith(f"user_data of cloud 'aws': {site} is ")
    size = int(text.rpartition(" is ")[2].split()[0])
    assert text.endswith(" bytes when packed; EC2 leaves room for 500")
    exact = Form(form.program, size + 100, 100, "EC2")
    assert read_parts(str(site), "aws", "", exact) == (site.read_text(),)
    with pytest.raises(ConfigError, match=f"the text of join is {size} bytes when packed"):
        read_parts(None, "aws", site.read_text(), Form(form.program, size + 99, 100, "EC2"))


def test_without_a_file_there_is_only_what_joins(form: Form) -> None:
    assert read_parts(None, "aws", "", form) == ()
    assert read_parts(None, "aws", PARTS[0], form) == (PARTS[0],)
    assert read_user_data(None, "aws") == ""


@pytest.mark.parametrize(("mode", "refused"), [(0o644, False), (0o664, True), (0o646, True)])
def test_who_may_write_a_part_is_root_on_each_machine(
    tmp_path: Path, *, mode: int, refused: bool
) -> None:
    part = tmp_path / "part"
    part.write_text("#!/bin/sh\n")
    part.chmod(mode)
    if not refused:
        assert read_part(str(part), "user_data") == "#!/bin/sh\n"
        return
    with pytest.raises(ConfigError, match=rf"^user_data: {part} may be .*; chmod go-w {part}$"):
        read_part(str(part), "user_data")


def test_a_file_that_is_not_cloud_inits_is_a_mistake_but_not_an_empty_one(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_text("")
    assert read_user_data(str(part), "aws") == ""
    part.write_text("echo\n")
    with pytest.raises(ConfigError, match=f"{part} begins with none of cloud-init's #cloud-config"):
        read_user_data(str(part), "aws")
    part.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="user_data of cloud 'aws' cannot be read"):
        read_user_data(str(part), "aws")


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        ("#cloud-config", "text/cloud-config"),
        ("#cloud-config-archive", "text/cloud-config-archive"),
        ("#cloud-config-jsonp", "text/cloud-config-jsonp"),
        ("#include-once", "text/x-include-once-url"),
        ("#include", "text/x-include-url"),
    ],
)
def test_a_part_has_the_type_by_which_cloud_init_takes_it(first: str, kind: str) -> None:
    assert f"Content-Type: {kind};" in multipart([f"{first}\n- a\n"])


def test_blank_lines_before_the_first_one_are_none(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(BLANK_FIRST.read_bytes())
    text = read_user_data(str(part), "aws")
    assert text.startswith("#cloud-config\n")
    assert kind_of(text) == "text/cloud-config"


def test_facts_of_one_machine_are_a_program_that_a_shell_takes() -> None:
    text = facts_program({"node": "n'1", "pool": "a b"})
    assert "pool='a b'\n" in text
    assert "> /run/slurm-elastic/.node\n" in text
    subprocess.run(["sh", "-n", "-c", text], check=True)


def test_only_root_may_read_the_facts_of_a_machine_with_an_enrolment_key(tmp_path: Path) -> None:
    text = facts_program({"node": "n1", "enrol_key": "secret"})
    text = text.replace("/run/slurm-elastic", str(tmp_path))
    subprocess.run(["sh", "-c", text], check=True)
    assert "enrol_key=secret\n" in (tmp_path / "launch").read_text()
    assert (tmp_path / "launch").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o644
