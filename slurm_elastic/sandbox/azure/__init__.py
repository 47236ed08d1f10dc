"""The sandbox's Azure: an emulated resource manager with one subscription."""
