"""What happens to machines: resume, suspend, reconcile, and the prologs that wait for them."""
