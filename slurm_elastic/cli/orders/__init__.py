"""Commands that change what the services do."""
