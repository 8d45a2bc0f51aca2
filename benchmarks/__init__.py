"""Speed, measured: one question per file."""
