"""The sections of a configuration as frozen values."""
