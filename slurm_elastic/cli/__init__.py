"""The command line: one module a sub-command; nothing else in the package prints."""
