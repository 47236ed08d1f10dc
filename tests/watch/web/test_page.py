"""The page as a browser has it: legible at any width, by keyboard and screen reader, and inert."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from selenium.webdriver import ActionChains, Chrome, Keys
from status_cases import NOW, busy_ledger, busy_slurm, config, config_file

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.checkpointers.fake import FakeCheckpointer
from slurm_elastic.cli.jobs import explain
from slurm_elastic.cli.machine_readable import as_json
from slurm_elastic.cli.operate import web
from slurm_elastic.cli.reports import cost
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.watch.view.clusters import (
    HeadAnswer,
    HeadQueue,
    HeadStatus,
    HeadTotals,
    clusters_view,
)
from slurm_elastic.watch.web import server
from slurm_elastic.watch.web.documents import DocumentSource, Query
from tests.watch.web.stage import Page, served

HOSTILE = "<img src=x onerror=pwned=1><script>pwned=1</script>"
PAGES = (
    "#/",
    "#/mine/*",
    "#/day",
    "#/explain/42",
    "#/explain",
    "#/cost/account/90d",
    "#/migrations",
    "#/clusters",
    "#/doctor",
)
INTERNAL = ("about:", "chrome:", "chrome-untrusted:", "data:")
SIZES = ((400, True), pytest.param(1600, False, marks=pytest.mark.release))


class Frozen:
    """The time module of a command at NOW."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return NOW


class Site:
    """The documents of the page, any of which may be changed."""

    def __init__(self, sources: Mapping[str, DocumentSource]) -> None:
        self._sources = sources
        self.changes: dict[str, Any] = {}

    def sources(self) -> dict[str, Callable[[Query], str]]:
        return {name: self._source(name) for name in (*self._sources, "doctor")}

    def _source(self, name: str) -> Callable[[Query], str]:
        def made(query: Query) -> str:
            change = self.changes.get(name)
            if isinstance(change, str):
                raise SlurmElasticError(change)
            if name == "doctor":
                return json.dumps(DIAGNOSIS)
            if name == "clusters":
                return CLUSTERS
            text = self._sources[name].make(query)
            if change is None:
                return text
            document = json.loads(text)
            change(document)
            return json.dumps(document)

        return made


CLUSTERS = as_json(
    clusters_view(
        [
            HeadAnswer(
                name="west",
                status=HeadStatus(
                    at=NOW - 5, cluster="west", version=1, queue=HeadQueue(running=4, waiting=2),
                    totals=(HeadTotals(machines=3, price_now=0.25, cost_live=1.5),),
                ),
            ),
            HeadAnswer(name="east", trouble=HOSTILE, seen_at=NOW - 7200),
        ],
        NOW,
    )
)  # fmt: skip
DIAGNOSIS = {
    "version": 1, "at": NOW, "wrong": 1,
    "parts": [{"name": "cloud aws", "findings": [
        {"check": "image", "level": "ok", "found": "ami-1", "expected": "", "advice": ""},
        {"check": "credentials", "level": "wrong", "found": HOSTILE, "expected": "ones that hold",
         "advice": "renew them"},
    ]}],
}  # fmt: skip


@pytest.fixture
def slurm() -> FakeSlurm:
    return busy_slurm()


@pytest.fixture
def site(tmp_path: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> Site:
    for module in (web, explain, cost):
        monkeypatch.setattr(module, "time", Frozen())
    ledger = busy_ledger(tmp_path / "ledger.db")
    ledger.health.beat("slurm-elasticd", NOW - 3, os.getpid())
    ledger.close()
    return Site(web.sources(config(tmp_path), slurm, config_file(tmp_path)))


@pytest.fixture
def page(site: Site, browser: Chrome) -> Iterator[Page]:
    with ExitStack() as stack:
        address = stack.enter_context(served(site.sources()))
        shown = Page(browser, address)
        yield shown.sized(1600)
        browser.get("about:blank")


def press(page: Page, *keys: str) -> None:
    ActionChains(page.driver).send_keys(*keys).perform()


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_every_page_is_accessible_fits_and_asks_nobody_else(
    page: Page, width: int, dark: bool
) -> None:
    page.requests(), page.complaints()
    page.sized(width, dark=dark)
    for place in PAGES:
        page.go(place)
        assert page.overflow() <= 0, place
        assert page.axe() == [], place
    asked = {url for url in page.requests() if not url.startswith(INTERNAL)}
    assert {url for url in asked if not url.startswith(page.address)} == set()
    assert page.complaints() == []


def test_what_needs_somebody_is_read_first_and_the_rest_is_there(page: Page) -> None:
    text = " ".join(page.go().text("main").split())
    order = [text.index(words) for words in (
        "cannot be ended until the credentials work", "cloud aws refuses the credentials",
        "Act now Pool general IS PAUSED", "Machines paid 7",
        "Jobs waiting 1", "2 booting", "suspends in 3m 20s unless used",
        "InsufficientInstanceCapacity", "Running now, and ended",
    )]  # fmt: skip
    assert order == sorted(order)
    assert page.text("header").count("as of") == 1


@pytest.mark.release
def test_the_nodes_are_a_slider_for_the_keyboard(page: Page) -> None:
    page.go()
    page.js("document.querySelectorAll('canvas')[1].focus()")
    press(page, Keys.ARROW_RIGHT)
    assert "pub2 is down: Not responding" in page.text(".chosen")
    said = page.js("return document.activeElement.getAttribute('aria-valuetext')")
    assert said == "pub2: down"
    press(page, Keys.END)
    assert "pub8 is held: no offer left" in page.text(".chosen")
    press(page, Keys.HOME, Keys.ENTER)
    page.wait(lambda: "Why is pub1 where it is?" in page.text("h1"))
    page.wait(lambda: "c6i.xlarge in eu-west-1a, spot, $0.04/h" in page.text("main"))


def test_a_job_is_explained_from_the_search_field_without_a_mouse(page: Page) -> None:
    page.go()
    for _ in range(40):
        if page.js("return document.activeElement.id") == "subject":
            break
        press(page, Keys.TAB)
    press(page, "42", Keys.ENTER)
    page.wait(lambda: "job 42 of bob is RUNNING on pub1" in page.text("main"))
    page.js("document.querySelector('summary').focus()")
    press(page, Keys.ENTER)
    assert "cools down for 100 s: InsufficientInstanceCapacity" in page.text("main")
    press(page, "")
    page.go("#/explain/nothing")
    page.wait(lambda: "nothing is known about" in page.text("main"))


@pytest.mark.release
def test_costs_are_chosen_by_key_and_span(page: Page) -> None:
    page.go("#/cost")
    page.wait(lambda: "Nothing was paid" in page.text("main") or "in all" in page.text("main"))
    for name, value in (("By", "market"), ("Of", "90d")):
        page.js(
            "const box = [...document.querySelectorAll('label')].find(l => l.innerText.startsWith("
            "arguments[0] + ' ') || l.innerText.startsWith(arguments[0] + '\\n')).querySelector("
            "'select'); box.value = arguments[1]; box.dispatchEvent(new Event('change', {bubbles: true}))",
            name, value,
        )  # fmt: skip
    page.wait(lambda: "$0.166112 in all" in page.text("main"))
    assert page.js("return location.hash") == "#/cost/market/90d"
    assert "Checked: parts sum to the charge in each of 13 pieces" in page.text("main")


def test_a_new_reading_changes_the_page_in_place(page: Page, site: Site) -> None:
    page.go()
    page.js("document.querySelector('main input').focus()")
    press(page, "pub")
    page.wait(lambda: "5 machines" in page.text(".wide caption") or "of 6" in page.text("main"))

    def more(document: dict[str, Any]) -> None:
        document["site"]["machines"] = 4321

    site.changes["status"] = more
    page.wait(lambda: "4,321" in page.text(".figures"))
    assert page.js("return document.activeElement.value") == "pub"
    site.changes["status"] = "slurm-elasticd does not answer"
    page.wait(lambda: "slurm-elasticd does not answer" in page.text("header"))
    assert "4,321" in page.text(".figures"), "the last reading stays"
    del site.changes["status"]
    page.wait(lambda: "does not answer" not in page.text("header"))


@pytest.mark.release
def test_the_day_tells_the_most_at_one_moment_and_hours_their_most(page: Page, site: Site) -> None:
    """Two machines one after the other within five minutes are one at most at once, not two."""

    def short(document: dict[str, Any]) -> None:
        points = document["points"]
        none, one, two = [0] * points, [0] * points, [0] * points
        one[40], two[40] = 3, 2
        document["machines"] = {"spot": one, "on-demand": two}
        document["dollars"] = {
            "spot": [0.0] * 40 + [1.2] + [0.0] * (points - 41),
            "on-demand": none,
        }
        at = document["begin"] + 40 * document["step_s"]
        document["peaks"]["machines"] = {"value": 4, "at": at}
        document["peaks"]["dollars"] = {"value": 7.5, "at": at}

    site.changes["day"] = short
    page.go("#/day")
    page.wait(lambda: "at most" in page.text("main"))
    captions = page.js("return [...document.querySelectorAll('figcaption')].map(c => c.innerText)")
    machines, money, *_ = (" ".join(text.split()) for text in captions)
    assert machines.startswith("Machines paid 0 now, at most 4 at ")
    assert "at most $7.5" in money
    page.js("document.querySelector('details').open = true")
    rows = page.js(
        "return [...document.querySelectorAll('details tbody tr')].map(r => r.innerText.split('\t'))"
    )
    assert [row[1:4] for row in rows if row[1] != "0"] == [["3", "2", "$0.10"]]
    assert rows[0][0].startswith("now")


@pytest.mark.release
def test_stopped_machines_are_paid_though_none_runs(page: Page, site: Site) -> None:
    def kept(document: dict[str, Any]) -> None:
        document["instances"] = []
        for number, pool in enumerate(document["pools"]):
            pool["stopped"] = 2 * (number == 0)

    site.changes["status"] = kept
    page.go()
    page.wait(lambda: "No machine runs; 2 stopped machines are paid for." in page.text("main"))
    assert "No machine is paid" not in page.text("main")


@pytest.mark.release
def test_which_of_two_heads_acts_is_told(page: Page, site: Site) -> None:
    told = "Head: heada acts, epoch 2; this one, headb, stands by"
    page.go()
    assert "Head: " not in page.text("main")
    site.changes["status"] = lambda document: document.update(head={"text": told})
    page.wait(lambda: told in page.text("main"))


def test_words_of_users_and_clouds_are_text(page: Page, site: Site) -> None:
    def hostile(document: dict[str, Any]) -> None:
        document["cluster"] = HOSTILE
        document["attention"][0]["text"] = HOSTILE
        machine = document["instances"][0]
        machine["next"] = f"{HOSTILE}\u202egnp.x\x1b[2J"
        machine["jobs"] = [{"id": 7, "user": HOSTILE, "state": "RUNNING"}]
        machine["zone"] = "javascript:pwned=1"
        document["holds"][0]["reason"] = HOSTILE

    def chain(document: dict[str, Any]) -> None:
        document["now"] = HOSTILE
        for decision in document["decisions"]:
            decision |= {"reason": HOSTILE, "kind": HOSTILE, "subjects": [HOSTILE, "job:<b>"]}

    site.changes |= {"status": hostile, "explain": chain}
    for place in ("#/", "#/explain/42", f"#/explain/{HOSTILE}", "#/doctor", "#/cost/%zz/<b>"):
        page.go(place)
        if place != "#/cost/%zz/<b>":
            page.wait(lambda: "onerror=pwned" in page.text("main"))
        assert page.js("return document.querySelectorAll('main img, main script').length") == 0
        assert page.js("return typeof window.pwned") == "undefined"
    page.go()
    text = page.text("main")
    assert "\u202e" not in text
    assert "\\u202egnp.x\\x1b[2J" in text


def test_the_browser_runs_and_asks_nothing_that_is_not_ours(page: Page) -> None:
    page.go()
    refused = page.driver.execute_async_script(
        """
        const done = arguments[0], found = [];
        addEventListener("securitypolicyviolation", (e) => found.push(e.effectiveDirective));
        const image = new Image();
        image.src = "http://127.0.0.2:9/x.png";
        document.body.append(image);
        fetch("http://127.0.0.2:9/").catch(() => {});
        const styled = document.createElement("style");
        styled.textContent = "body {}";
        document.head.append(styled);
        try { document.body.innerHTML = "<b>x</b>"; } catch { found.push("innerHTML"); }
        const wait = () => found.length >= 5 ? done(found) : setTimeout(wait, 20);
        wait();
        """
    )
    assert set(refused) >= {"img-src", "connect-src", "style-src-elem", "innerHTML"}
    assert page.js("return document.querySelector('h1') !== null")


@pytest.fixture
def cut(page: Page) -> Iterator[Callable[..., None]]:
    """Breaks requests off whose addresses end so, as a browser does whose network changes."""
    page.driver.execute_cdp_cmd("Network.enable", {})

    def off(*ends: str) -> None:
        urls = [f"*{end}" for end in ends]
        page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": urls})

    yield off
    off()


@pytest.mark.release
@pytest.mark.parametrize("part", ["/words.js", "/uplot.js", "/style.css"])
def test_a_page_that_lacks_a_part_says_so_and_is_loaded_again(
    page: Page, cut: Callable[..., None], part: str
) -> None:
    cut(part)
    page.driver.get("about:blank")
    page.driver.get(page.address)
    page.wait(lambda: "did not arrive; loading it again" in page.text("[role=alert]"))
    cut()
    page.wait(lambda: "Machines paid" in page.text("main"))
    page.wait(lambda: page.js("return history.state") is None)


@pytest.mark.release
@pytest.mark.parametrize("part", ["/app.js", "/style.css"])
def test_a_page_that_never_has_all_its_parts_gives_up(
    page: Page, cut: Callable[..., None], part: str
) -> None:
    """With most of them it shows what it can beside that."""
    cut(part)
    page.driver.get("about:blank")
    page.driver.get(page.address)
    page.wait(lambda: "did not arrive: load it again" in page.text("[role=alert]"))
    page.wait(lambda: part == "/app.js" or "Machines paid" in page.text("main"))
    assert "Reading the cluster" not in page.text()
    assert "did not arrive: load it again" in page.text("[role=alert]")


@pytest.mark.release
def test_a_request_that_was_broken_off_is_made_again(page: Page, cut: Callable[..., None]) -> None:
    cut("/api/status", "/api/events", "/api/cost?by=account&since=")
    page.driver.get("about:blank")
    page.driver.get(f"{page.address}#/cost")
    page.wait(lambda: "does not answer; trying again" in page.text("main"))
    page.wait(lambda: "does not answer; trying again" in page.text("header"))
    cut()
    page.wait(lambda: "Checked: parts" in page.text("main"), 60.0)
    page.wait(lambda: "as of" in page.text("header") and ":" not in page.text("#beat")[14:], 60.0)


@pytest.mark.release
def test_a_page_that_was_left_keeps_no_connection(
    site: Site, browser: Chrome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser has six for all pages of a server, and keeps pages for the way back."""
    made: list[server.PageAnswers] = []
    answers = server.PageAnswers

    def kept(*given: Any) -> server.PageAnswers:
        made.append(answers(*given))
        return made[0]

    monkeypatch.setattr(server, "PageAnswers", kept)
    with served(site.sources()) as address:
        page = Page(browser, address)
        for place in PAGES:
            page.go(place)
            page.wait(lambda: made[0]._open == 1)
        browser.get("about:blank")
        page.wait(lambda: made[0]._open == 0)


def test_the_page_has_the_sites_own_nodes_and_what_jobs_wait_for(page: Page) -> None:
    page.go()
    assert "site 1 own node" in " ".join(page.text(".clouds li").split())
    assert "1 for free nodes" in page.text(".figures")
    assert "Clusters" not in page.text("#pages"), "no other cluster is configured"


def test_several_clusters_are_a_table_with_sums(page: Page, site: Site) -> None:
    site.changes["status"] = lambda document: document.update(other_clusters=["west", "east"])
    page.go("#/clusters")
    page.wait(lambda: "Clusters" in page.text("#pages"))
    rows = "return [...document.querySelectorAll('main tbody tr')].map(r => r.innerText)"
    west, east, total = page.js(rows)
    assert west.split("\t")[:6] == ["west", "3", "$0.25", "$1.50", "4", "2"]
    assert f"no answer (last answer 2h ago): {HOSTILE}" in east
    assert total.startswith("all\t3\t$0.25\t$1.50")
    assert "without east" in total


@pytest.mark.release
@pytest.mark.parametrize("place", ["#/", "#/explain"])
def test_jobs_that_wait_are_listed_and_lead_to_why(page: Page, site: Site, place: str) -> None:
    def many(document: dict[str, Any]) -> None:
        one = document["queue"]["jobs"][0]
        told = [
            one | {"id": 50 + n, "label": str(50 + n), "tasks": 1 + 3 * (n == 1), "age_s": 60.0 * n}
            for n in range(15)
        ]
        document["queue"] |= {"jobs": told, "waiting": 18}

    site.changes["status"] = many
    page.go(place)
    page.wait(lambda: "18 jobs wait, the longest first" in page.text("main"))
    rows = (
        "return [...document.querySelectorAll('[data-key=waiting] tbody tr')].map(r => r.innerText)"
    )
    assert len(page.js(rows)) == 10
    assert "51 (4 tasks)" in page.js(rows)[1]
    assert "Resources" in page.js(rows)[1]
    page.js(
        "[...document.querySelectorAll('button')].find(b => b.innerText === 'Show all 15').click()"
    )
    page.wait(lambda: len(page.js(rows)) == 15)
    page.js("document.querySelector('[data-key=waiting] tbody a').click()")
    page.wait(lambda: "Why is 50 where it is?" in page.text("h1"))


@pytest.mark.release
def test_a_job_that_can_never_start_says_why_beside_jobs_that_can(
    page: Page, slurm: FakeSlurm
) -> None:
    """Its reason in Slurm is of other jobs that wait, and tells nothing about it."""
    slurm.set_job(51, "PENDING", user="erin", partitions=("burst",), node_count=9, cpus=9,
                  reason="Priority")  # fmt: skip
    page.go()
    page.wait(lambda: "2 jobs wait" in page.text("main"))
    cells = """
        const table = document.querySelector('[data-key=waiting]');
        const names = [...table.querySelectorAll('thead th')].map(cell => cell.innerText);
        return Object.fromEntries([...table.querySelectorAll('tbody tr')].map(row => [
          row.cells[0].innerText.trim(), row.cells[names.indexOf('Why it waits')].innerText]));
    """
    assert page.js(cells) == {
        "50": "Resources: it waits for nodes that are busy, or on their way",
        "51": "the job asks for 9 nodes, and 8 such can be up together at most",
    }
    assert "51 can never start" in page.text("main")


def test_a_job_that_started_over_is_no_success_and_shows_its_lost_work(
    page: Page, tmp_path: Path
) -> None:
    run = JobRun(
        job=6, label="6", attempt=0, user="ann", uid=1001, gid=100, nodes=("pub1",),
        partition="burst", started=NOW - 700,
    )  # fmt: skip
    image = FakeCheckpointer(lambda: NOW - 160).checkpoint(run, deadline=NOW, stop=False)
    over = Migration(
        run=run, method="fake", threatened=("pub1",), reason=Quoted(text="fan broken"),
        step=MigrationStep.BACK, began=NOW - 110, changed=NOW - 90,
        reached={str(MigrationStep.REQUEUED): NOW - 100},
    )  # fmt: skip
    with closing(CheckpointState(tmp_path / "checkpoints.db")) as memory:
        memory.put(over, replace(over, run=replace(run, job=5, label="5"), image=image))
    page.go("#/migrations")
    page.wait(lambda: "Moved in the last 24 hours" in page.text("main"))
    steps = """
        const rows = document.querySelectorAll('[data-key^=Moved] tbody tr');
        return Object.fromEntries([...rows].map(row => [row.cells[0].innerText, {
          step: row.cells[1].innerText, style: row.cells[1].querySelector('b').className,
          lost: row.querySelector('[data-label="Work lost"]').innerText }]));
    """
    assert page.js(steps) == {
        "5": {"step": "back", "style": "good", "lost": "1m"},
        "6": {"step": "started over", "style": "alarm", "lost": "10m"},
    }


@pytest.mark.release
def test_jobs_are_listed_for_the_visitor_or_a_chosen_user(page: Page, site: Site) -> None:
    page.go("#/mine")
    page.wait(lambda: "No job, and none since" in page.text("main"))
    page.js(
        "const box = document.querySelector('main select'); box.value = '*';"
        "box.dispatchEvent(new Event('change', { bubbles: true }))"
    )
    page.wait(lambda: "Jobs of all users" in page.text("h1"))
    text = " ".join(page.text("[data-key=mine]").split())
    assert "42" in text
    assert "bob" in text
    assert "$0." in text
    users = page.js("return [...document.querySelectorAll('main option')].map(o => o.value)")
    assert {"*", "bob"} <= set(users)
    page.go("#/mine/bob")
    page.wait(lambda: "Jobs of bob" in page.text("h1"))
    assert "42" in page.text("[data-key=mine]")


@pytest.mark.release
def test_an_explained_job_has_its_cost(page: Page) -> None:
    page.go("#/explain/42")
    page.wait(lambda: "Cost: $" in page.text("main"))


@pytest.mark.release
def test_the_page_of_decisions_begins_with_the_newest_nodes(page: Page) -> None:
    page.go("#/explain")
    page.wait(lambda: "Nodes with the newest machines" in page.text("main"))
    first = "return document.querySelector('[aria-labelledby=recent] tbody a').innerText"
    assert page.js(first) == "pub3"


@pytest.mark.release
@pytest.mark.parametrize(
    ("error", "why"), [("timed out", "does not answer"), (None, "does not show its nodes")]
)
def test_nodes_of_which_slurm_does_not_tell_are_unknown_and_not_down(
    page: Page, site: Site, error: str | None, why: str
) -> None:
    def blind(document: dict[str, Any]) -> None:
        document |= {"slurm_error": error, "nodes": []}
        for pool in (*document["pools"], *document["clouds"]):
            pool["states"] = {}

    site.changes["status"] = blind
    page.go()
    page.wait(lambda: "8 unknown" in page.text("main"))
    said = "return document.querySelectorAll('canvas')[1].getAttribute('aria-valuetext')"
    assert page.js(said) == f"pub1: unknown, as Slurm {why}"
    assert page.js("return document.querySelectorAll('.swatch.down').length") == 0
    colours = page.js(
        """
        const canvas = document.querySelectorAll('canvas')[1], found = new Set();
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) found.add([...data.slice(i, i + 3)].join());
        return [...found];
        """
    )
    assert colours, "something is drawn"
    spread = [max(rgb) - min(rgb) for rgb in (tuple(map(int, one.split(","))) for one in colours)]
    assert max(spread) < 40, "in grey"


@pytest.mark.release
def test_what_is_to_be_done_is_said_or_asked_of_doctor(page: Page, site: Site) -> None:
    def told(document: dict[str, Any]) -> None:
        document["attention"] = [
            {
                "level": "loud",
                "text": "Slurm does not answer",
                "advice": "systemctl status slurmctld",
            },
            {"level": "loud", "text": "The ledger cannot be read", "advice": ""},
            {"level": "bad", "text": "The clock is wrong; do: timedatectl", "advice": ""},
            {"level": "warn", "text": "Cloud aws is paused by root", "advice": ""},
        ]

    site.changes["status"] = told
    page.go()
    told_of = page.js("return [...document.querySelectorAll('main .told')].map(t => t.innerText)")
    first, second, third, fourth = (" ".join(text.split()) for text in told_of[:4])
    assert first == "Act now Slurm does not answer do: systemctl status slurmctld"
    assert second == "Act now The ledger cannot be read What to do, says doctor"
    assert third == "Broken The clock is wrong; do: timedatectl"
    assert fourth == "Look Cloud aws is paused by root"


@pytest.mark.release
def test_what_is_told_above_is_not_repeated_below_and_what_is_not_known_is_no_number(
    page: Page, site: Site
) -> None:
    refused = "ExpiredToken: the token is expired"

    def broken(document: dict[str, Any]) -> None:
        document["attention"] = [
            {"level": "bad", "text": f"Cloud aws: {refused}", "advice": "", "cause": "cloud:aws"}
        ]
        document["clouds"][1]["problem"] = refused
        document["holds"][0] |= {"reason": f"aws: {refused}", "cause": "cloud:aws"}
        document["queue"]["jobs"][0] |= {"pool_reason": "the budget is spent", "reason": "None"}
        document["ledger_error"] = "it is damaged"

    site.changes["status"] = broken
    text = " ".join(page.go().text("main").split())
    assert text.count(refused) == 1
    assert "cloud aws, see above" in text
    assert "the budget is spent" in text
    assert "spot, on-demand; machines not known" in text
    assert "0 machines" not in text


@pytest.mark.release
def test_money_has_a_sum_and_a_long_list_of_nodes_its_own_first(page: Page, site: Site) -> None:
    def many(document: dict[str, Any]) -> None:
        nodes = [f"pub{n}" for n in (997, 1949, 42, 7, 0, 10, 9, 1)]
        document["decisions"] = document["decisions"][:1]
        document["decisions"][0]["subjects"] = [*nodes, "job:42"]

    total = page.go().text("[data-key^='Running now'] tbody tr:last-child")
    assert total.split()[0] == "all"
    site.changes["explain"] = many
    page.go("#/explain/pub1")
    page.wait(lambda: "job 42" in page.text(".chain"))
    shown = "pub1, pub0, pub7, pub9, pub10, pub42 and 2 more nodes, job 42"
    assert shown in " ".join(page.text(".chain").split())


@pytest.mark.release
def test_on_a_phone_all_pages_are_in_one_line(page: Page) -> None:
    page.sized(390, 844).go()
    tops = page.js("return [...document.querySelectorAll('nav li')].map(li => li.offsetTop)")
    assert len(set(tops)) == 1


@pytest.mark.release
def test_on_a_phone_no_table_is_cut(page: Page) -> None:
    page.sized(390, 844)
    for place in PAGES:
        page.go(place)
        page.js("for (const one of document.querySelectorAll('details')) one.open = true")
        cut = (
            "return [...document.querySelectorAll('.wide')].map(w => w.scrollWidth - w.clientWidth)"
        )
        assert all(pixels <= 0 for pixels in page.js(cut)), place
    page.go()
    labels = page.js(
        "return getComputedStyle(document.querySelector('tbody td'), '::before').content"
    )
    assert "attr" in labels or "Why it waits" in labels


@pytest.mark.release
def test_hours_and_days_are_chosen(page: Page) -> None:
    page.go("#/day/24h")
    page.wait(lambda: "The last 24 hours" in page.text("h1"))
    page.js(
        "const box = document.querySelector('main select'); box.value = '7d';"
        "box.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    page.wait(lambda: "The last 7 days" in page.text("h1") and "Day by day" in page.text("main"))
    assert page.js("return location.hash") == "#/day/7d"
    page.js("document.querySelector('details').open = true")
    rows = page.js("return document.querySelectorAll('details tbody tr').length")
    assert rows == 8, "seven days and now"


@pytest.mark.release
@pytest.mark.parametrize(
    ("age", "title"), [(600, "The last hour"), (7200, "The last 6 hours"), (40_000, "24 hours")]
)
def test_without_a_choice_the_day_fits_what_there_is(
    page: Page, site: Site, age: int, title: str
) -> None:
    """After the first hour of a trial the charts of a whole day were two pixels wide."""

    def young(document: dict[str, Any]) -> None:
        points = document["points"]
        since = round(age / document["step_s"])
        values = [0] * (points - min(since, points)) + [2] * min(since, points)
        document["machines"] = {"on-demand": [0] * points, "spot": values}
        document["running"] = values
        document["waiting"] = [0] * points

    site.changes["day"] = young
    page.go("#/day")
    page.wait(lambda: title in page.text("h1"))
    assert page.js("return location.hash") == "#/day"
    box = page.js("return document.querySelector('main select').value")
    assert box == {600: "1h", 7200: "6h", 40_000: "24h"}[age]


@pytest.mark.release
def test_no_line_of_a_chart_covers_another(page: Page, site: Site) -> None:
    """Of two markets with as many machines each the second is on top of the first."""

    def alike(document: dict[str, Any]) -> None:
        two = [2] * document["points"]
        document["machines"] = {"on-demand": two, "spot": two}

    site.changes["day"] = alike
    page.go("#/day")
    drawn = "return document.querySelector('[data-key=\"Machines paid\"] .chart').$plot.data.slice(1).map(s => s[9])"
    page.wait(lambda: page.js(drawn) == [4, 2])


@pytest.mark.release
def test_doctors_fine_rows_are_folded(page: Page) -> None:
    page.go("#/doctor")
    page.wait(lambda: "1 check found nothing wrong" in page.text("main"))
    assert "ami-1" not in page.text("main")
    assert "do: renew them" in page.text("main")
    page.js("document.querySelector('summary').click()")
    page.wait(lambda: "ami-1" in page.text("main"))


@pytest.mark.release
def test_costs_are_told_beside_on_demand_the_budget_and_the_days_before(
    page: Page, site: Site
) -> None:
    def budgeted(document: dict[str, Any]) -> None:
        document["budgets"] = [{
            "cloud": "", "account": "physics", "user": "", "day": 2.0, "per_day": 8.0, "month": 0.0,
            "per_month": None, "stop": None,
        }]  # fmt: skip

    def dearer(document: dict[str, Any]) -> None:
        document["on_demand_micro_dollars"] = 4 * document["micro_dollars"]
        document["unused_micro_dollars"] = document["micro_dollars"] // 2
        document["normal_unused_micro_dollars"] = document["micro_dollars"] // 5
        document["unused_advice"] = "idle: a shorter timings.suspend_time lowers this part."
        if document["by"] == "day":
            document["since"] = document["until"] - 3 * 86400

    site.changes |= {"status": budgeted, "cost": dearer}
    page.go("#/cost/account/90d")
    page.wait(lambda: "75.0 %" in page.text(".figures"))
    assert "Saved against on demand" in page.text(".figures")
    assert "$2.00 of $8.00 today" in page.text(".figures")
    figures = " ".join(page.text(".figures").split())
    assert "Unused 50.0 % 20.0 % is normal with these settings" in figures
    assert "a shorter timings.suspend_time" in page.text("main")
    page.wait(lambda: "Dollars a day" in page.text("figure"))
    assert page.js("return document.querySelectorAll('svg.trend rect.used').length") >= 1
    assert "dearest" not in page.text("main")


@pytest.mark.release
def test_a_cap_of_zero_is_shown_as_a_cap(page: Page, site: Site) -> None:
    """An operator stops all starts by ``limit cluster nodes 0``."""

    def closed(document: dict[str, Any]) -> None:
        document["site"] |= {"limit": 0, "price_limit": 0.0}

    site.changes["status"] = closed
    figures = " ".join(page.go().text(".figures").split())
    assert "of at most 0" in figures
    assert "of at most $0.00" in figures
    assert "no cap" not in figures


@pytest.mark.release
def test_records_of_saves_that_cannot_be_read_are_no_proof_that_nothing_is_saved(
    page: Page, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints.db").write_bytes(b"no database" * 1000)
    text = page.go("#/migrations").text("main")
    assert "Saves and moves are not known, as their records cannot be read: " in text
    assert "has never run" not in text


@pytest.mark.release
def test_costs_of_very_many_jobs_are_shown(page: Page, site: Site) -> None:
    """Also those of machines that cost nothing: no line vanishes without a word."""

    def many(document: dict[str, Any]) -> None:
        line = {"unused": False, "machine_hours": 1.0, "dollars_per_hour": 0.0}
        document["machines"] = 1
        document["lines"] = [
            {"key": str(n), "micro_dollars": 5_000_000 if n < 3 else 0, **line}
            for n in range(150_000)
        ]

    site.changes["cost"] = many
    page.go("#/cost/job/90d")
    page.wait(lambda: "Show 149,970 more, $0.000000 together" in page.text("main"))
    lead = page.text(".lead")
    assert " of 1 machine, " in lead
    assert re.search(r" to \S+ \d\d:\d\d [A-Z]\S+$", lead), "local time has its zone"


@pytest.mark.release
def test_the_times_of_an_old_decision_have_the_zone_of_its_day(page: Page, site: Site) -> None:
    """The page is read in winter, and the decision was made in summer."""

    def in_summer(document: dict[str, Any]) -> None:
        july = 1_783_065_600.0  # 2026-07-03 08:00 UTC
        document["decisions"][-1] |= {"at": july, "reason": "it cools down until 08:05 UTC"}

    site.changes["explain"] = in_summer
    page.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Berlin"})
    try:
        page.go("#/explain/42")
        page.wait(lambda: "it cools down until" in page.text("main"))
        assert "it cools down until 10:05 GMT+2" in page.text("main")
    finally:
        page.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
