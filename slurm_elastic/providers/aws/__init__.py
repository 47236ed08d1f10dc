"""EC2, by boto3."""
