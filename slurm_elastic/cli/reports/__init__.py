"""Commands that print bills and reports of the past."""
