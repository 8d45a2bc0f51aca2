"""Several buffers seen as one."""
