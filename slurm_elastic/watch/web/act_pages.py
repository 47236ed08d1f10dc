"""The pages of actions, as HTML without scripts of their own: they work without JavaScript."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

if TYPE_CHECKING:
    from slurm_elastic.watch.web.actions import FormField, PageAction, Preview

PLACE = "act"
"""The address of all these pages, beside the page itself."""
TABS = {
    "now": "Now", "mine": "My jobs", "day": "Day", "explain": "Explain", "cost": "Cost",
    "migrations": "Migrations", "doctor": "Doctor",
}  # fmt: skip
"""The tabs that each page has, by their place, as in ``static/app.js``."""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · slurm-elastic</title>
<link rel="icon" href="icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="style.css">
<script defer src="act.js"></script>
</head>
<body>
<a class="skip" href="#content">Skip to content</a>
<header>
  <p class="name"><b>slurm-elastic</b> <span class="quiet">{user}</span></p>
  <nav aria-label="Pages"><ul>{tabs}</ul></nav>
</header>
<main id="content" class="act" tabindex="-1">
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def overview(user: str | None, actions: Sequence[PageAction], read_only: str = "") -> str:
    """The page with all actions. If the visitor has no name, it shows the reason ``read_only``
    instead.
    """
    if read_only:
        return _page(user, "Act", _notice_box("note", "Read-only", _sentence(read_only)))
    rows = "".join(_row(action) for action in actions)
    lead = "<p>You see what an action would do before you confirm it.</p>"
    return _page(user, "Act", f'{lead}<dl class="reasons actions">{rows}</dl>')


def form(
    user: str, action: PageAction, values: Mapping[str, str], token: str, error: str = ""
) -> str:
    """The page with the form of one action, filled in with ``values``."""
    if action.refusal:
        return _page(
            user, action.title, _notice_box("note", "Not allowed", _sentence(action.refusal))
        )
    fields = "".join(_field(field, values.get(field.name, "")) for field in action.fields)
    hidden = _hidden({"session": token, "do": action.name})
    alert = _notice_box("bad", "Refused", _sentence(error), role="alert") if error else ""
    body = (
        f"<p>{_text(action.summary)}</p>{alert}"
        f'<form method="post" action="{PLACE}">{hidden}{fields}'
        '<p class="buttons"><button class="main">Show what it would do</button> '
        f'<a href="{PLACE}">Other actions</a></p></form>'
    )
    return _page(user, action.title, body)


def preview(
    user: str,
    action: PageAction,
    values: Mapping[str, str],
    shown: Preview,
    tokens: Mapping[str, str],
    changed: str = "",
) -> str:
    """The page with the effects of an action, and the button that carries it out."""
    alert = _notice_box("warn", "Changed", changed, role="alert") if changed else ""
    question = shown.question.removesuffix(" Do it?")
    loss = _notice_box("bad", "Careful", question) if question else ""
    back = urlencode({"do": action.name, **values})
    body = (
        f"{alert}<p>It would do this:</p>{_lines(shown.lines)}{loss}"
        f'<p class="quiet">The same on the command line: <code>{_text(shown.command)}</code></p>'
        f'<form method="post" action="{PLACE}">{_hidden(tokens)}'
        f'<p class="buttons"><button class="main">{_text(action.title)} now</button> '
        f'<a href="{html.escape(f"{PLACE}?{back}")}">Change it</a> '
        f'<a href="{PLACE}">Do nothing</a></p></form>'
    )
    return _page(user, f"{action.title}?", body)


def done(user: str, action: PageAction, shown: Preview, lines: Sequence[str]) -> str:
    """The page with the lines of an action that was carried out."""
    body = (
        f"{_notice_box('fine', 'Done', f'by {user}')}{_lines(lines)}"
        f'<p class="quiet"><code>{_text(shown.command)}</code></p>'
        f'<p class="buttons"><a href="./#/now">Now</a> <a href="{PLACE}">Other actions</a></p>'
    )
    return _page(user, f"{action.title}: done", body)


def refused(user: str | None, reason: str) -> str:
    """The page with the reason why nothing was done."""
    body = _notice_box("bad", "Refused", f"{_sentence(reason)} Nothing was done.", role="alert")
    return _page(user, "Refused", f'{body}<p class="buttons"><a href="{PLACE}">Actions</a></p>')


def _page(user: str | None, title: str, body: str) -> str:
    tabs = "".join(f'<li><a href="./#/{place}">{name}</a></li>' for place, name in TABS.items())
    tabs += f'<li><a href="{PLACE}" aria-current="page">Act</a></li>'
    name = f"as {user}" if user else "read-only"
    return _PAGE.format(title=_text(title), user=_text(name), tabs=tabs, body=body)


def _row(action: PageAction) -> str:
    refusal = f' <span class="quiet">({_text(action.refusal)})</span>' if action.refusal else ""
    link = f'<a href="{PLACE}?do={action.name}">{_text(action.title)}</a>'
    title = _text(action.title) if action.refusal else link
    return f"<dt>{title}</dt><dd>{_text(action.summary)}{refusal}</dd>"


def _field(field: FormField, value: str) -> str:
    name, label = html.escape(field.name), _text(field.label)
    hint = f' <small id="{name}-hint">{_text(field.hint)}</small>' if field.hint else ""
    described = f' aria-describedby="{name}-hint"' if field.hint else ""
    if field.kind == "flag":
        checked = " checked" if value else ""
        box = f'<input type="checkbox" id="{name}" name="{name}" value="yes"{checked}{described}>'
        return f'<p class="field flag">{box} <label for="{name}">{label}</label>{hint}</p>'
    required = " required" if field.is_required else ""
    if field.choices and not field.is_open:
        # The browser chooses the first option by itself, and nobody may have meant that cloud.
        choices = ("", *field.choices) if field.is_required else field.choices
        options = "".join(_option(choice, value) for choice in choices)
        box = f'<select id="{name}" name="{name}"{required}{described}>{options}</select>'
        return f'<p class="field"><label for="{name}">{label}</label> {box}{hint}</p>'
    suggestions, listed = "", ""
    if field.choices:
        options = "".join(f'<option value="{_text(choice)}">' for choice in field.choices)
        suggestions = f'<datalist id="{name}-list">{options}</datalist>'
        listed = f' list="{name}-list"'
    kind = "number" if field.kind == "number" else "text"
    box = (
        f'<input type="{kind}" id="{name}" name="{name}" value="{_text(value)}" maxlength="500"'
        f' autocomplete="off" autocapitalize="off" spellcheck="false"{required}{listed}{described}>'
    )
    return f'<p class="field"><label for="{name}">{label}</label> {box}{suggestions}{hint}</p>'


def _option(choice: str, value: str) -> str:
    selected = " selected" if choice == value else ""
    return f'<option value="{_text(choice)}"{selected}>{_text(choice)}</option>'


def _hidden(values: Mapping[str, str]) -> str:
    return "".join(
        f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">'
        for name, value in values.items()
    )


def _lines(lines: Sequence[str]) -> str:
    return f'<ul class="effects">{"".join(f"<li>{_text(line)}</li>" for line in lines)}</ul>'


def _notice_box(level: str, word: str, sentence: str, role: str = "") -> str:
    named = f' role="{role}"' if role else ""
    return (
        f'<div class="told {level}"{named}><b>{_text(word)}</b>'
        f"<div><p>{_text(sentence)}</p></div></div>"
    )


def _sentence(text: str) -> str:
    """The text as a sentence of its own: with a capital and a full stop."""
    end = "" if text.endswith((".", "!", "?")) else "."
    return f"{text[:1].upper()}{text[1:]}{end}"


def _text(text: str) -> str:
    """The text as HTML, with control characters and changes of direction shown by their numbers."""
    return html.escape(
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )
