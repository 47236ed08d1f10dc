"""The reasons why jobs wait, in their AdminComments."""
