"""doctor looks at the program that sends mails."""

from __future__ import annotations

from pathlib import Path

import pytest
from cost_cases import config_file
from msgspec.structs import replace

from slurm_elastic.config.configfile import load
from slurm_elastic.config.sections.telling import Notify
from slurm_elastic.watch.doctor import head


@pytest.mark.parametrize(
    ("notify", "is_wrong"),
    [
        (Notify(mail_program="/nonexistent/mail"), False),
        (Notify(mail_program="/nonexistent/mail", mail=("ops@site.example",)), True),
        (Notify(mail_program="/nonexistent/mail", users=True), True),
        (Notify(mail_program="/nonexistent/mail", coordinators=True), True),
        (Notify(mail_program="/nonexistent/mail", accounts={"physics": ("pi@x.example",)}), True),
        (Notify(mail_program="/bin/true", users=True), False),
    ],
)
def test_a_mail_program_that_is_not_there(tmp_path: Path, notify: Notify, is_wrong: bool) -> None:
    config = replace(load(config_file(tmp_path)), notify=notify)
    found = [finding for finding in head.memory(config, 0.0) if finding.subject == "notify"]
    assert [finding.level.value for finding in found] == ["wrong"] * is_wrong
    assert all("/nonexistent/mail is not a program" in finding.observed for finding in found)
