"""Serves a WSGI application of OpenStack's: ``python serve.py MODULE:NAME PORT``, in its environment."""

import importlib
import sys

import waitress

if __name__ == "__main__":
    where, port = sys.argv[1:]
    module, _, name = where.partition(":")
    del sys.argv[1:]  # the applications read it, too
    application = getattr(importlib.import_module(module), name)
    waitress.serve(application, listen=f"127.0.0.1:{port}", threads=6, ident="test")
