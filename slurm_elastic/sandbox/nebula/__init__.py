"""The sandbox's OpenNebula: an emulated API with machines behind it."""
