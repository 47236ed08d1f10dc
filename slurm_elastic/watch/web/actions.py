"""The actions of the page: a form, a preview, a confirmation, and only then the action.

``cli.page_actions`` makes the actions from the commands. This module knows no web server:
``acting`` and ``wsgi`` pass requests in and answers out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Literal, Protocol
from urllib.parse import parse_qsl

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.watch.door.rights import NoRightError, Person
from slurm_elastic.watch.web import act_pages
from slurm_elastic.watch.web.forms import OneTimeForms, Rates, SessionTokens, StaleFormError
from slurm_elastic.watch.web.origins import cross_site, wrong_type

MAX_BODY = 16 << 10
"""Bytes of a form."""
MAX_FIELDS = 32
ACTION, TOKEN, CONFIRMED = "do", "session", "confirm"
"""Fields of every form: the action's name, the session's token, and the token of the preview that
the person confirms.
"""

NO_ACTIONS: Mapping[str, object] = {"user": None, "read_only": "", "actions": []}
"""The document of a page without actions."""


class FormField(Struct, frozen=True, kw_only=True):
    """One field of a form. ``choices``: the values, or only suggestions if it ``is_open``."""

    name: str
    label: str
    kind: Literal["text", "number", "flag"] = "text"
    hint: str = ""
    is_required: bool = False
    choices: tuple[str, ...] = ()
    is_open: bool = True


class PageAction(Struct, frozen=True, kw_only=True):
    """An action, and why this person may not do it ("": the person may)."""

    name: str
    title: str
    summary: str
    fields: tuple[FormField, ...]
    refusal: str = ""


class Preview(Struct, frozen=True, kw_only=True):
    """The effects of an action, before it is done.

    ``command``: the same action on the command line. ``question``: the loss that the person must
    accept, or "". ``digest``: a digest of the facts on which the preview rests.
    """

    command: str
    lines: tuple[str, ...]
    question: str = ""
    digest: str


class ActionRequest(Protocol):
    """An action with its arguments, as one person asked for it at one time."""

    def preview(self) -> Preview:
        """The effects as things are now; durations count from the time of the request.

        SlurmElasticError if the action is impossible, NoRightError if the person may not do it.
        """

    def carry_out(self) -> Sequence[str]:
        """Carry out the action. Returns lines that say what was done. SlurmElasticError if it
        failed.
        """


class Actions(Protocol):
    """All actions of a page."""

    def offered(self, person: Person) -> Sequence[PageAction]:
        """The actions, in the order of the page."""

    def request(self, name: str, values: Mapping[str, str], person: Person) -> ActionRequest:
        """ConfigError if the values are wrong, NoRightError if the person may not do it."""


class WaitingRequest(Struct, frozen=True):
    """A request whose preview was shown."""

    name: str
    values: Mapping[str, str]
    request: ActionRequest
    digest: str


class Visit(Struct, frozen=True, kw_only=True):
    """One request of a browser. ``person`` is None if the user is unknown, with the reason in
    ``read_only``. ``session``: the cookie's value, or "". Names of headers are in lower case.
    """

    method: str
    person: Person | None
    read_only: str = ""
    headers: Mapping[str, str] = {}
    query: str = ""
    body: bytes = b""
    session: str = ""


class ActAnswer(Struct, frozen=True, kw_only=True):
    """A page. ``session``: the value of a cookie to set, or ""."""

    status: HTTPStatus = HTTPStatus.OK
    html: str
    session: str = ""


class ActionDesk:
    """Answers visits. ``site_names``: host names that the site's web server has for the page."""

    def __init__(self, actions: Actions, site_names: Sequence[str] = ()) -> None:
        self._actions, self._site_names = actions, site_names
        self._tokens, self._rates = SessionTokens(), Rates()
        self._forms = OneTimeForms[WaitingRequest]()

    def document(self, visit: Visit) -> dict[str, object]:
        """The actions for the page's own script, with the reason if the page is read-only."""
        if visit.person is None:
            return {**NO_ACTIONS, "read_only": visit.read_only}
        try:
            offered = self._actions.offered(visit.person)
        except SlurmElasticError as error:
            return {**NO_ACTIONS, "read_only": str(error)}
        actions = [
            {"name": action.name, "title": action.title, "refusal": action.refusal}
            for action in offered
        ]
        return {"user": visit.person.name, "read_only": "", "actions": actions}

    def answer(self, visit: Visit) -> ActAnswer:
        """The page for this visit. Only a POST with the token of a preview does anything."""
        try:
            if visit.method == "POST":
                return self._posted(visit)
            return self._shown(visit)
        except SlurmElasticError as error:  # the configuration, or who may act, cannot be read
            return self._refused(visit, HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def _shown(self, visit: Visit) -> ActAnswer:
        if visit.person is None:
            return ActAnswer(html=act_pages.overview(None, (), visit.read_only))
        try:
            values = dict(_fields(visit.query))
        except ValueError:
            return self._refused(visit, HTTPStatus.BAD_REQUEST, "this is no address of this page")
        action = self._action(visit.person, values.get(ACTION, ""))
        if action is None:
            actions = self._actions.offered(visit.person)
            return ActAnswer(html=act_pages.overview(visit.person.name, actions))
        return self._form(visit, visit.person, action, values)

    def _action(self, person: Person, name: str) -> PageAction | None:
        return next((each for each in self._actions.offered(person) if each.name == name), None)

    def _form(
        self,
        visit: Visit,
        person: Person,
        action: PageAction,
        values: Mapping[str, str],
        error: str = "",
        status: HTTPStatus = HTTPStatus.OK,
    ) -> ActAnswer:
        session = visit.session or self._tokens.new_session()
        token = self._tokens.token(session, person.uid)
        return ActAnswer(
            status=status,
            html=act_pages.form(person.name, action, values, token, error),
            session="" if visit.session else session,
        )

    def _refused(self, visit: Visit, status: HTTPStatus, reason: str) -> ActAnswer:
        name = visit.person.name if visit.person else None
        return ActAnswer(status=status, html=act_pages.refused(name, reason))

    def _posted(self, visit: Visit) -> ActAnswer:
        # First the browser's own word, which costs us nothing: a flood from another site must not
        # use up the rate of the visitor whose browser sends it.
        if reason := cross_site(visit.headers, self._site_names):
            return self._refused(visit, HTTPStatus.FORBIDDEN, reason)
        if reason := wrong_type(visit.headers):
            return self._refused(visit, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason)
        if visit.person is None:
            return self._refused(visit, HTTPStatus.FORBIDDEN, visit.read_only)
        if self._rates.is_over(visit.person.uid):
            reason = "you have sent many forms in the last minute; wait a minute"
            return self._refused(visit, HTTPStatus.TOO_MANY_REQUESTS, reason)
        try:
            values = dict(_fields(visit.body.decode("ascii")))
        except ValueError:
            return self._refused(visit, HTTPStatus.BAD_REQUEST, "this is no form of this page")
        return self._submitted(visit, visit.person, values)

    def _submitted(self, visit: Visit, person: Person, values: dict[str, str]) -> ActAnswer:
        token, confirmed = values.pop(TOKEN, ""), values.pop(CONFIRMED, "")
        action = self._action(person, values.pop(ACTION, ""))
        if action is None:
            return self._refused(visit, HTTPStatus.NOT_FOUND, "there is no such action")
        if not self._tokens.fits(token, visit.session, person.uid):
            error = "this form is of another session: look at it and send it again"
            return self._form(visit, person, action, values, error, HTTPStatus.FORBIDDEN)
        try:
            if confirmed:
                return self._confirmed(visit, person, action, confirmed, values)
            request = self._actions.request(action.name, values, person)
            return self._previewed(visit, person, action, values, request)
        except StaleFormError as error:
            return self._form(visit, person, action, {}, str(error), HTTPStatus.CONFLICT)
        except NoRightError as error:
            return self._refused(visit, HTTPStatus.FORBIDDEN, str(error))
        except SlurmElasticError as error:
            refused = HTTPStatus.UNPROCESSABLE_ENTITY
            return self._form(visit, person, action, values, str(error), refused)

    def _previewed(
        self,
        visit: Visit,
        person: Person,
        action: PageAction,
        values: Mapping[str, str],
        request: ActionRequest,
        changed: str = "",
    ) -> ActAnswer:
        preview = request.preview()
        waiting = WaitingRequest(action.name, dict(values), request, preview.digest)
        confirm = self._forms.issue(person.uid, waiting)
        token = self._tokens.token(visit.session, person.uid)
        tokens = {TOKEN: token, CONFIRMED: confirm, ACTION: action.name}
        html = act_pages.preview(person.name, action, values, preview, tokens, changed)
        return ActAnswer(status=HTTPStatus.CONFLICT if changed else HTTPStatus.OK, html=html)

    def _confirmed(
        self,
        visit: Visit,
        person: Person,
        action: PageAction,
        confirmed: str,
        values: dict[str, str],
    ) -> ActAnswer:
        """Carry out the waiting request, or show its new preview.

        The request's values replace ``values``, which the form shows after an error.
        """
        # Taken before anything can fail: a second POST must not find it, whatever becomes of this.
        waiting = self._forms.take(confirmed, person.uid)
        if waiting.name != action.name:
            raise StaleFormError("this form is of another action; nothing was done")
        values.clear()
        values.update(waiting.values)
        now = waiting.request.preview()
        if now.digest != waiting.digest:
            changed = "Nothing was done: the cluster has changed since. This is the new preview."
            request = self._actions.request(action.name, values, person)
            return self._previewed(visit, person, action, values, request, changed)
        lines = waiting.request.carry_out()
        return ActAnswer(html=act_pages.done(person.name, action, now, lines))


def _fields(text: str) -> list[tuple[str, str]]:
    """The fields of a form or an address. ValueError if there are too many."""
    return [
        (name, value.strip())
        for name, value in parse_qsl(text, max_num_fields=MAX_FIELDS, errors="strict")
    ]
