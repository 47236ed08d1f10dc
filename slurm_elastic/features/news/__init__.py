"""News for the site's people and users."""
