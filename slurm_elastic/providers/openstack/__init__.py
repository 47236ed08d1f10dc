"""OpenStack, by openstacksdk's session."""
