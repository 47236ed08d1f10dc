"""The page: what status, explain, cost, ckpt list and doctor tell, in a browser, read-only.

``static`` is one bundle of files without a build: it asks for the documents that those commands
print as JSON, of ``server`` here, or of the commands themselves as a plug-in of Cockpit.
``documents`` keeps answers for a moment, ``server`` is HTTP, ``listening`` the socket, and
``connection`` says who is let in there, and for how long.
"""
