"""OpenNebula, by pyone."""
