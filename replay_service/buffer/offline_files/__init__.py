"""Files of recorded steps, read into the layout that collectors write."""
