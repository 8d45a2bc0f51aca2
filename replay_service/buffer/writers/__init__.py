"""Writers: which slot a new record goes to."""
