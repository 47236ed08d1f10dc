"""What runs on machines, or as root beside the services, each behind a narrow door of its own."""
