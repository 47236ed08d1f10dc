"""Nobody acts on the page by another site, another user's name, a form of yesterday or a flood."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

import needs
import pytest
from patience import patience

from slurm_elastic.config.sections.access import PageProxy
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.web import acting, forms
from slurm_elastic.watch.web.actions import MAX_BODY
from slurm_elastic.watch.web.connection import MAX_CONNECTIONS
from slurm_elastic.watch.web.forms import MAX_FORMS_OF_USER, OneTimeForms, Rates, StaleFormError
from slurm_elastic.watch.web.origins import cross_site
from tests.watch.web.acting_stage import FORM, NOBODY, SAME_SITE, SUDO, Visitor, acting_page

pytestmark = needs.ROOT

WWW = 33
PROXY = PageProxy(user="www-data", header="X-Remote-User")


@pytest.fixture
def person(sock: Path) -> Visitor:
    return Visitor(sock, NOBODY, SUDO)


@pytest.fixture
def behind(file: Path, ledger: Ledger, open_path: Path) -> Iterator[Path]:
    """The page behind a web server that runs as www-data."""
    text = file.read_text().replace("[sudo]", "[daemon, sudo]")
    file.write_text(text)
    with acting_page(file, open_path / "page.sock", proxy=PROXY, group=WWW) as path:
        yield path


# cross-site requests


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:9000"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:9000"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "null"},
        {"Origin": "file://localhost"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
        {},
    ],
)
def test_a_form_of_another_site_is_refused_though_it_has_all_tokens(
    person: Visitor, ledger: Ledger, headers: dict[str, str]
) -> None:
    shown = person.asks("pause", scope="rack")
    body = urlencode(shown.hidden).encode()
    refused = person.send("POST", "/act", body, Content_Type=FORM, **headers)
    assert refused.status == HTTPStatus.FORBIDDEN
    assert "Nothing was done." in refused.words
    assert ledger.directives.all() == ()
    assert person.confirms(shown).status == HTTPStatus.OK, "and the form is still good"


def test_another_site_cannot_use_the_cookie_or_guess_the_session(
    person: Visitor, sock: Path, ledger: Ledger
) -> None:
    form = person.get("pause")
    assert "HttpOnly" in form.headers["set-cookie"]
    assert "SameSite=strict" in form.headers["set-cookie"]
    token = form.hidden["session"]
    for session, cookies in (("", person.cookies), ("0" * 64, person.cookies), (token, {})):
        stranger = Visitor(sock, NOBODY, SUDO)
        stranger.cookies = dict(cookies)
        refused = stranger.post({"do": "pause", "scope": "rack", "session": session})
        assert refused.status == HTTPStatus.FORBIDDEN
        assert "of another session" in refused.words
        assert 'value="rack"' in refused.text, "nothing has to be typed a second time"
    assert ledger.directives.all() == ()


def test_tokens_are_of_one_user(person: Visitor, sock: Path, ledger: Ledger) -> None:
    shown = person.asks("pause", scope="rack")
    other = Visitor(sock, 1, SUDO)
    other.cookies = dict(person.cookies)
    assert other.confirms(shown).status == HTTPStatus.FORBIDDEN
    own = other.get("pause").hidden
    assert other.post({**shown.hidden, **own}).status == HTTPStatus.CONFLICT
    assert ledger.directives.all() == ()
    assert person.confirms(shown).status == HTTPStatus.OK


@pytest.mark.parametrize(
    "kind",
    ["application/json", "text/plain", "multipart/form-data; boundary=x", "", f"{FORM}; x=y"],
)
def test_only_a_form_is_read(person: Visitor, ledger: Ledger, kind: str) -> None:
    """A browser sends text/plain to any site without asking; JSON may hide in it."""
    shown = person.asks("pause", scope="rack")
    refused = person.confirms(shown, **{"Content-Type": kind})
    assert refused.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    assert ledger.directives.all() == ()


def test_no_page_is_framed_and_forms_lead_to_us_alone(person: Visitor) -> None:
    for path in ("/act", "/act?do=pause", "/", "/act.js"):
        policy = person.send("GET", path).headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        forms_of = "'self'" if path in ("/act", "/act?do=pause") else "'none'"
        assert f"form-action {forms_of};" in policy
    form = person.get("pause")
    assert form.headers["cache-control"] == "no-store"
    assert form.headers["referrer-policy"] == "same-origin", "else browsers send Origin: null"


def test_a_forged_host_is_refused(person: Visitor, ledger: Ledger) -> None:
    """As of a name of somebody's own that leads to this host (DNS rebinding)."""
    shown = person.asks("pause", scope="rack")
    person.host = "evil.example"
    refused = person.confirms(shown, Origin="http://evil.example")
    assert refused.status == HTTPStatus.BAD_REQUEST
    assert person.get("pause").status == HTTPStatus.BAD_REQUEST
    assert ledger.directives.all() == ()


def test_a_name_of_the_site_is_an_origin(file: Path, ledger: Ledger, open_path: Path) -> None:
    names = ("page.example.org", "*.hpc.example.org")
    with acting_page(file, open_path / "page.sock", group=SUDO, site_names=names) as sock:
        person = Visitor(sock, NOBODY, SUDO, host="page.example.org")
        for origin, code in (
            ("https://page.example.org", HTTPStatus.OK),
            ("https://a.hpc.example.org", HTTPStatus.OK),
            ("https://hpc.example.org", HTTPStatus.FORBIDDEN),
            ("https://page.example.org.evil.example", HTTPStatus.FORBIDDEN),
        ):
            form = person.get("pause").hidden
            assert person.post({**form, "scope": "rack"}, Origin=origin).status == code, origin


# replays


def test_a_form_is_good_once(person: Visitor, ledger: Ledger) -> None:
    shown = person.asks("pause", scope="rack")
    assert person.confirms(shown).status == HTTPStatus.OK
    for order in ledger.directives.all():
        ledger.directives.end(order.number)
    replayed = person.confirms(shown)
    assert replayed.status == HTTPStatus.CONFLICT
    assert "This form was sent before; nothing was done a second time." in replayed.words
    assert ledger.directives.all() == ()


def test_a_form_sent_twice_at_once_acts_once(person: Visitor, ledger: Ledger) -> None:
    shown = person.asks("limit", scope="rack", key="max_nodes", value="1")
    answers: list[int] = []
    twice = [
        threading.Thread(target=lambda: answers.append(person.confirms(shown).status))
        for _ in range(4)
    ]
    for thread in twice:
        thread.start()
    for thread in twice:
        thread.join()
    assert sorted(answers) == [HTTPStatus.OK, *[HTTPStatus.CONFLICT] * 3]


def test_a_token_of_one_action_does_no_other(person: Visitor, ledger: Ledger) -> None:
    shown = person.asks("pause", scope="rack").hidden
    refused = person.post({**shown, "do": "drain", "subject": "rack"})
    assert refused.status == HTTPStatus.CONFLICT
    assert ledger.directives.all() == ()


def test_values_of_a_preview_cannot_be_changed(person: Visitor, ledger: Ledger) -> None:
    shown = person.asks("pause", scope="rack").hidden
    person.post({**shown, "scope": "cluster", "reason": "more"})
    (order,) = ledger.directives.all()
    assert (order.word.scope, order.reason) == ("pool:rack", "")


def test_old_forms_and_too_many_are_forgotten() -> None:
    clock = [0.0]
    kept = OneTimeForms[int](lambda: clock[0])
    first = kept.issue(7, 1)
    issued = [kept.issue(7, number) for number in range(MAX_FORMS_OF_USER)]
    assert [kept.take(token, 7) for token in issued[:-1]] == [*range(MAX_FORMS_OF_USER - 1)]
    last = issued[-1]
    with pytest.raises(StaleFormError, match="older than 10m"):
        kept.take(first, 7)
    clock[0] += forms.MAX_AGE_S
    with pytest.raises(StaleFormError, match="older than 10m"):
        kept.take(last, 7)
    of_others = kept.issue(8, 5)
    for uid in range(100, 100 + forms.MAX_FORMS):
        kept.issue(uid, 0)
    with pytest.raises(StaleFormError):
        kept.take(of_others, 8)
    assert len(kept._forms) == forms.MAX_FORMS


# other users' roles


def test_a_plain_user_gives_no_order_whatever_the_form_says(
    person: Visitor, file: Path, open_path: Path, sock: Path, ledger: Ledger
) -> None:
    with acting_page(file, open_path / "other.sock", group=NOBODY) as other:
        plain = Visitor(other, NOBODY)
        refused = plain.get("pause")
        assert "This is for root, slurm and members of sudo." in refused.words
        form = person.get("pause").hidden
        plain.get()
        assert plain.post({**form, "scope": "rack"}).status == HTTPStatus.FORBIDDEN
        # With a token of their own, from the form of the only action that is open to users.
        form = plain.get("save").hidden
        for action in ("pause", "resume", "limit", "drain", "replace", "migrate", "clear"):
            refused = plain.post({**form, "do": action, "scope": "rack", "subject": "rack"})
            assert refused.status == HTTPStatus.FORBIDDEN, action
    assert ledger.directives.all() == ()


def test_a_header_counts_only_from_the_web_servers_own_user(behind: Path, ledger: Ledger) -> None:
    """As a member of the socket's group might send it, without the proxy."""
    forger = Visitor(behind, NOBODY, WWW)
    forger.headers = {"X-Remote-User": "daemon"}
    assert "as nobody" in forger.get().text
    assert "pause" in forger.may()
    assert forger.may()["pause"].startswith("this is for root")
    form = forger.get("save").hidden
    refused = forger.post({**form, "do": "pause", "scope": "rack"})
    assert refused.status == HTTPStatus.FORBIDDEN
    assert ledger.directives.all() == ()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "one header X-Remote-User, and sent 0 of them"),
        (["daemon", "nobody"], "one header X-Remote-User, and sent 2 of them"),
        (["daemon, nobody"], "names 'daemon, nobody', and this host has no such user"),
        (["alice@example.org"], "this host has no such user"),
        ([""], "this host has no such user"),
        (["root"], "names root, who acts only by the page's unix socket"),
        (["slurm"], "names slurm, who acts only by the page's unix socket"),
        (["x" * 200], "this host has no such user"),
    ],
)
def test_a_web_server_that_names_nobody_or_root_leaves_the_page_read_only(
    behind: Path, ledger: Ledger, names: list[str], sentence: str
) -> None:
    web = Visitor(behind, WWW, WWW)
    lines = "".join(f"X-Remote-User: {name}\r\n" for name in names)
    request = f"GET /act HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n"
    shown = web.understood(web.raw(request.encode()))
    assert shown.status == HTTPStatus.OK
    assert "Read-only" in shown.words
    assert sentence in shown.words
    body = b"do=pause&scope=rack"
    request = (
        f"POST /act HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}Content-Type: {FORM}"
        f"\r\nOrigin: http://localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    refused = web.understood(web.raw(request.encode() + body))
    assert refused.status == HTTPStatus.FORBIDDEN
    assert ledger.directives.all() == ()


def test_a_web_server_names_the_person_and_has_no_right_itself(
    behind: Path, ledger: Ledger
) -> None:
    web = Visitor(behind, WWW, WWW)
    web.headers = {"X-Remote-User": "daemon"}
    assert web.does("pause", scope="rack").status == HTTPStatus.OK
    (order,) = ledger.directives.all()
    assert order.who == "daemon"
    shown = web.asks("resume", subject="rack")
    web.headers = {"X-Remote-User": "nobody"}
    assert web.confirms(shown).status == HTTPStatus.FORBIDDEN, "somebody else has logged in since"
    assert len(ledger.directives.all()) == 1


# GET, bodies, floods


def test_no_get_acts(person: Visitor, ledger: Ledger) -> None:
    shown = person.asks("pause", scope="rack").hidden
    for method in ("GET", "HEAD"):
        seen = person.send(method, f"/act?{urlencode({**shown, 'scope': 'rack'})}", **SAME_SITE)
        assert seen.status == HTTPStatus.OK
    for query in ("&".join(["x=1"] * 100), "scope=%ff"):
        assert person.send("GET", f"/act?do=pause&{query}").status == HTTPStatus.BAD_REQUEST
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert person.send(method, "/act").status == HTTPStatus.METHOD_NOT_ALLOWED
    for path in ("/", "/api/actions", "/api/status"):
        refused = person.send("POST", path, urlencode(shown).encode(), Content_Type=FORM)
        assert refused.status == HTTPStatus.METHOD_NOT_ALLOWED, path
    assert ledger.directives.all() == ()


def test_a_body_is_bounded_whatever_its_length_is_said_to_be(
    person: Visitor, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = person.asks("pause", scope="rack")
    too_long = person.confirms(
        shown._replace(text=shown.text.replace("</form>", _filler(MAX_BODY)))
    )
    assert too_long.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    head = (
        f"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\n"
        "Origin: http://localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()
    chunk = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    chunked = person.understood(person.raw(head + chunk * 8))
    assert chunked.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert chunked.headers["connection"] == "close"
    fields = urlencode([(f"x{n}", "1") for n in range(100)]).encode()
    many = person.send("POST", "/act", fields, Content_Type=FORM, **SAME_SITE)
    assert many.status == HTTPStatus.BAD_REQUEST
    for body in (b"do=%ff%fe", b"do=\xff", b"do=pause&scope=%00"):
        answer = person.send("POST", "/act", body, Content_Type=FORM, **SAME_SITE)
        assert 400 <= answer.status < 500, body
    monkeypatch.setattr(acting, "BODY_TIMEOUT_S", 0.3)
    slow = person.understood(person.raw(head))
    assert slow.status == HTTPStatus.REQUEST_TIMEOUT
    assert ledger.directives.all() == ()


def _filler(size: int) -> str:
    return f'<input type="hidden" name="filler" value="{"x" * size}">'


def test_each_user_has_a_rate(person: Visitor, sock: Path, ledger: Ledger) -> None:
    clock = [0.0]
    rates = Rates(lambda: clock[0])
    assert [rates.is_over(7) for _ in range(forms.RATE + 1)] == [*[False] * forms.RATE, True]
    assert not rates.is_over(8)
    clock[0] += forms.RATE_WINDOW_S
    assert not rates.is_over(7)
    for uid in range(forms.MAX_USERS + 10):
        rates.is_over(uid)
    assert len(rates._sent_at) == forms.MAX_USERS


def test_a_flood_of_forms_is_refused_and_others_act(
    person: Visitor, sock: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = person.asks("pause", scope="rack")
    body = urlencode({**shown.hidden, "confirm": "x"}).encode()
    cookie = "; ".join(f"{name}={value}" for name, value in person.cookies.items())
    head = (
        f"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\nCookie: {cookie}\r\n"
        f"Origin: http://localhost\r\nContent-Length: {len(body)}\r\n"
    )
    answers = person.raw(
        (f"{head}\r\n".encode() + body) * (forms.RATE + 1)
        + f"{head}Connection: close\r\n\r\n".encode() + body
    )  # fmt: skip
    assert answers.count(b"HTTP/1.1 429") >= 2
    assert person.confirms(shown).status == HTTPStatus.TOO_MANY_REQUESTS
    assert Visitor(sock).does("pause", scope="rack").status == HTTPStatus.OK


@pytest.mark.parametrize("request_begin", [b"", b"POST /act HTTP/1.1\r\nHost: localhost\r\n"])
def test_1000_connections_keep_nobody_from_acting(
    sock: Path, ledger: Ledger, request_begin: bytes
) -> None:
    """Neither silent ones nor those that never end their request, of a user who may connect."""
    ending = threading.Event()

    def flood() -> None:
        with contextlib.ExitStack() as links:
            for _ in range(1000):
                link = links.enter_context(socket.socket(socket.AF_UNIX))
                link.connect(str(sock))  # with a time-out it would fail while the queue is full
                link.settimeout(patience(30))
                with contextlib.suppress(OSError):
                    link.sendall(request_begin)
            flooded.set()
            ending.wait(patience(60))

    flooded = threading.Event()
    thread = threading.Thread(target=flood)
    thread.start()
    try:
        person = Visitor(sock, NOBODY, SUDO)
        shown = person.asks("pause", scope="rack")
        assert shown.status == HTTPStatus.OK, "while they come"
        assert flooded.wait(patience(60))
        assert person.confirms(shown).status == HTTPStatus.OK, "and while they stay"
    finally:
        ending.set()
        thread.join()
    assert len(ledger.directives.all()) == 1


def test_connections_of_a_busy_user_are_closed_first(sock: Path) -> None:
    """Those of others stay: their owner may be about to send a form."""
    with contextlib.ExitStack() as links:
        kept = Visitor(sock, NOBODY, SUDO)
        slow = threading.Thread(target=lambda: answers.append(kept.get("pause").status))
        answers: list[int] = []
        for _ in range(3 * MAX_CONNECTIONS):
            link = links.enter_context(socket.socket(socket.AF_UNIX))
            link.connect(str(sock))  # with a time-out it would fail while the queue is full
            link.settimeout(patience(30))
        slow.start()
        for _ in range(MAX_CONNECTIONS):
            link = links.enter_context(socket.socket(socket.AF_UNIX))
            link.connect(str(sock))  # with a time-out it would fail while the queue is full
            link.settimeout(patience(30))
        slow.join()
        assert answers == [HTTPStatus.OK]


# where the page does not act


def test_at_a_port_the_page_is_read_only_and_says_why(file: Path) -> None:
    from slurm_elastic.cli.orders.page_actions import PageActions
    from slurm_elastic.watch.web.actions import ActionDesk, Visit
    from slurm_elastic.watch.web.visitors import SocketVisitors, UnknownVisitorError

    with pytest.raises(UnknownVisitorError) as unknown:
        SocketVisitors(lambda: PROXY, lambda: frozenset({0})).person(None, ["daemon"])
    desk = ActionDesk(PageActions(file))
    why = str(unknown.value)
    assert "open it by its unix socket to act" in why
    assert (
        "open it by its unix socket to act"
        in desk.answer(Visit(method="GET", person=None, read_only=why)).html
    )
    headers = {"origin": "http://localhost", "host": "localhost", "content-type": FORM}
    refused = desk.answer(
        Visit(method="POST", person=None, read_only=why, headers=headers, body=b"do=pause")
    )
    assert refused.status == HTTPStatus.FORBIDDEN
    assert desk.document(Visit(method="GET", person=None, read_only=why))["actions"] == []


def test_an_old_browser_says_only_the_origin() -> None:
    assert cross_site({"origin": "http://localhost:8411", "host": "localhost:8411"}, ()) == ""
    assert cross_site({"origin": "http://[::1", "host": "localhost"}, ())
