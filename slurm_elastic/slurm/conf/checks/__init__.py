"""Findings of `conf check` about a site's own configuration."""
