"""The hosted buffer: dispatch, actor, owner."""
