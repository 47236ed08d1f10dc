"""Programs that run on machines, or as root beside the services. Each does one narrow task."""
