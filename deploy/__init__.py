"""The operator's side: bring a replay service up, look at it, take it down."""
