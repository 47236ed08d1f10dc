"""A site's job history replayed on machines that come and go, with what they cost."""
