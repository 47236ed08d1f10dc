"""The page: what status, explain, cost, ckpt list and doctor tell, in a browser, read-only.
``static`` is a bundle of files that needs no build. It asks for the documents that those commands
print as JSON: from ``server`` here, or, in Cockpit, from the commands themselves. ``documents``
keeps answers for a moment, ``listening`` is the socket, ``connection`` decides who may connect and
for how long.
"""
