"""Which waiting job starts next."""
