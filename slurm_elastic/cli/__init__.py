"""The command line, with one module for each sub-command. No other part of the package prints."""
