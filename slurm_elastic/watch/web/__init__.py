"""The page: status, explain, cost, ckpt list, doctor and operators' actions in a browser.

``static``: files of the page, which need no build. The page asks for the JSON documents of these
commands: from ``server``, or in Cockpit from the commands themselves. ``documents`` caches answers,
``listening`` opens the socket, ``connection`` decides who may connect and for how long.

Actions: ``visitors`` finds the user of a request, ``origins`` and ``forms`` refuse forms of other
pages and forms that were used before, ``actions`` leads from form to preview to confirmation,
``act_pages`` has their HTML. ``acting`` and ``wsgi`` are the ways in.
"""
