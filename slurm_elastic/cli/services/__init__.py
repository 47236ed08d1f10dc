"""The programs of the services, and how they are started."""
