"""Checkpointers: how the records of each kind of storage lie in a checkpoint."""
