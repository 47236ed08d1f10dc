"""Commands about single jobs."""
