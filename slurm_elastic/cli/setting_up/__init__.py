"""Commands with which a site is set up and tried."""
