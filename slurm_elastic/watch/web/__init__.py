"""The read-only page: status, explain, cost, ckpt list and doctor in a browser.

``static``: files of the page, which need no build. The page asks for the JSON documents of these
commands: from ``server``, or in Cockpit from the commands themselves. ``documents`` caches answers,
``listening`` opens the socket, ``connection`` decides who may connect and for how long.
"""
