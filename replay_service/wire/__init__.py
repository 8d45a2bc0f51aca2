"""Messages between a handle and its service."""
