"""What all sections share: numbers, names, addresses."""
