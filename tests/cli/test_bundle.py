"""The archive for support: what is in it, and what never is."""

from __future__ import annotations

import stat
import tarfile
from pathlib import Path

import pytest
from cost_cases import book, config_file

from slurm_elastic.base.redaction import GONE, redacted
from slurm_elastic.cli.main import main
from slurm_elastic.model.causes import Quoted
from slurm_elastic.state.ledger import Decision

SECRETS = {
    "password": "# password: Hunter2-of-the-yaml\n",
    "quoted": 'api_key: "quoted secret, with; signs"\n',
    "list": "tokens: [first-token-of-two, second-token-of-two]\n",
    "dbpass": "AccountingStoragePass=of-slurmdbd-99\n",
    "environment": "export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n",
    "bare": "found wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEZ there\n",
    "id": "using AKIAIOSFODNN7EXAMPLE for the call\n",
    "url": "proxy http://proxyuser:proxysecret@proxy.example.org:3128/\n",
    "webhook": "  webhook: https://chat.example.org/hooks/T0000/B0000/abcdefgh\n",
    "bearer": "> Authorization: Bearer abcdef0123456789abcdef\n",
    "header": 'sent {"X-Auth-Token": "gAAAAABtokentokentokentokentoken"}\n',
    "jwt": "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl end\n",
    "option": "slurm-elastic-page --team hpc --token tok-after-an-option --now\n",
    "option list": "command: [/usr/local/sbin/page, --token, tok-in-a-list, --now]\n",
    "option lines": "command:\n  - /usr/local/sbin/page\n  - --api-key\n  - tok-on-a-line\n",
    "option json": '{"command":["/page","--password","tok-in-json","-v"]}\n',
    "option quoted": "page --token 'tok of words' --now; [--api-key, \"tok, of more\"]\n",
    "escaped": '{"password": "begun\\"ended-by-it"}\n',
    "x-key": "> X-Key: plain-header-word\n> X-Site-Key: other-header-word\n",
    "psk": "wpa psk=plain-psk-word\n",
    "hex": "join word " + "0f1e2d3c" * 8 + " told\n",
    "at": "by redis://:p@ss@wo@cache.example.org/0 and amqp://u:q@r@mq.example.org\n",
    "pem": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----\n",
}
PLANTED = (
    "Hunter2-of-the-yaml", "quoted secret", "first-token-of-two", "second-token-of-two",
    "of-slurmdbd-99", "wJalrXUtnFEMI", "AKIAIOSFODNN7EXAMPLE", "proxysecret", "T0000/B0000",
    "abcdef0123456789abcdef", "gAAAAAB", "eyJhbGci", "b3BlbnNzaC1rZXktdjEA", "tok-after-an-option", "tok-in-a-list", "tok-on-a-line",
    "tok-in-json", "plain-header-word", "other-header-word", "plain-psk-word", "0f1e2d3c0f", "p@ss",
    "ss@wo", "q@r", "of words", "of more", "ended-by-it",
)  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = config_file(tmp_path)
    ledger = book(tmp_path / "state" / "ledger.db")
    ledger.decisions.record(Decision(
        at=1.0, correlation="r", kind="refused", subjects=("pub1",),
        cause=Quoted(text="the cloud said: " + SECRETS["header"]), detail={"error": SECRETS["url"]},
    ))  # fmt: skip
    ledger.close()
    path.write_text(path.read_text() + SECRETS["password"])
    (tmp_path / "state" / "slurm.conf").write_text(
        f"ClusterName=alps\n{SECRETS['dbpass']}include more.conf\nInclude /nonexistent.conf\n"
    )
    (tmp_path / "state" / "more.conf").write_text("PartitionName=kept\n" + SECRETS["webhook"])
    (tmp_path / "daemon.log").write_text("the first line\n" + "".join(SECRETS.values()) * 3)
    return path


def bundle(site: Path, *words: str) -> tuple[Path, dict[str, str]]:
    output = site.parent / "case.tgz"
    command = ["--config", str(site), "bundle", "--output", str(output)]
    assert main([*command, "--log", str(site.parent / "daemon.log"), *words]) == 0
    with tarfile.open(output) as archive:
        files = {m.name.partition("/")[2]: archive.extractfile(m) for m in archive.getmembers()}
        return output, {name: file.read().decode() for name, file in files.items() if file}


def test_no_planted_secret_is_in_it(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, files = bundle(site)
    everything = "".join(files.values())
    assert [secret for secret in PLANTED if secret in everything] == []
    assert everything.count(GONE) > 30
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert [secret for secret in PLANTED if secret in capsys.readouterr().out] == []


def test_it_has_what_helps_and_lists_it(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, files = bundle(site)
    out = capsys.readouterr().out
    assert set(files) >= {
        "versions.txt", "slurm-elastic.yaml", "status.txt", "status.json", "doctor.txt",
        "checkpoints.txt", "decisions.jsonl", "slurm/slurm.conf", "slurm/more.conf",
        "slurm/nonexistent.conf", "logs/daemon.log",
    }  # fmt: skip
    assert all(name in out for name in files)
    assert f"{output} names users and jobs: check it (tar xzf) before you send it" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert "msgspec" in files["versions.txt"]
    assert "clouds:" in files["slurm-elastic.yaml"]
    assert "PartitionName=kept" in files["slurm/more.conf"]
    assert "not available" in files["slurm/nonexistent.conf"]
    assert "the first line" in files["logs/daemon.log"]
    assert "the cloud said" in files["decisions.jsonl"]
    assert '"cluster":"alps"' in files["status.json"]


def test_only_so_many_lines_of_a_log_are_taken(site: Path) -> None:
    _, files = bundle(site, "--lines", "2")
    assert len(files["logs/daemon.log"].splitlines()) <= 2


def test_a_file_that_is_there_stays(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle(site)
    before = (site.parent / "case.tgz").read_bytes()
    words = ["--config", str(site), "bundle", "--output", str(site.parent / "case.tgz")]
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert (site.parent / "case.tgz").read_bytes() == before


def test_the_address_of_a_webhook_is_taken_out_wherever_it_stands(site: Path) -> None:
    address = "https://chat.example.org/plain/words"
    site.write_text(f"{site.read_text()}notify: {{webhook: {address}}}\n")
    (site.parent / "daemon.log").write_text(f"not told error=POST {address} refused\n")
    _, files = bundle(site)
    assert [name for name, text in files.items() if "plain/words" in text] == []
    assert f"POST {GONE} refused" in files["logs/daemon.log"]


@pytest.mark.parametrize("name", SECRETS)
def test_each_form_of_a_secret_is_known(name: str) -> None:
    clean, count = redacted(f"before\n{SECRETS[name]}after\n")
    assert count >= 1
    assert [secret for secret in PLANTED if secret in clean] == []
    assert clean.startswith("before\n")
    assert clean.endswith("after\n")


ENDLESS = {
    "names": "psk-",
    "options": "--token",
    "names without a value": "psk=,",
    "lists that do not end": "psk=[,",
    "quotes that do not end": "psk='psk=\"",
    "tokens that do not end": "eyJ-",
    "users without a host": "a" * 20 + "://x:",
    "options with much room": " --" + "psk-" * 30 + " " * 60,
    "options with many lines": " --psk" + "\n" * 63,
    "names with much room": "psk" + " " * 4000,
}


@pytest.mark.timeout(100)
@pytest.mark.parametrize("piece", ENDLESS.values(), ids=list(ENDLESS))
def test_a_log_that_was_made_to_take_long_takes_not_long(piece: str) -> None:
    """A second or less; by patterns that try each way to read a run it would be minutes."""
    size = 1 << 20
    clean, _ = redacted(piece * (size // len(piece)))
    assert clean.startswith(piece[0])


def test_a_run_is_looked_at_as_far_as_it_goes() -> None:
    long = "n" * 300
    assert redacted(f"{long}-token: x1, {long}psk=y2\n")[0] == (
        f"{long}-token: {GONE}, {long}psk={GONE}\n"
    )
    assert redacted("name: token=x1; p.token.file: x\n") == (
        f"name: token={GONE}; p.token.file: x\n",
        1,
    )
    assert redacted("tokens: [one, two\nnext: line") == (f"tokens: {GONE}\nnext: line", 1)


@pytest.mark.parametrize(
    "text",
    [
        "cloud aws refuses the credentials: RequestExpired\n",
        "AuthType=auth/munge\nSlurmUser=slurm\n",
        "g1800000000000-0011aabb launched i-0aaaaaaaaaaaaaaa1 for pub[1-8]\n",
        "key: /etc/slurm-elastic/id_ed25519\n",
        "password: null\n",
        "image: ami-0123456789abcdef0\n",
        "munge_key: /etc/slurm-elastic/munge.key\n",
        "image debian@sha256:" + "ab" * 32 + "\n",
        "slurm-elastic key rotate --secret\n",
        "http://cloud.example.org:2633/RPC2\n",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == (text, 0)
