"""Effects around a node's power: programs at start and end, and hypervisors."""
