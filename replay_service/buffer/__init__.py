"""The buffer in one process."""
