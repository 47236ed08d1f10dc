"""The sandbox's EC2: an emulated API with machines behind it."""
