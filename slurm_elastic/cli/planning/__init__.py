"""Commands that answer what would be, before anything is paid."""
