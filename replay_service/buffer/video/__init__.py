"""Video-backed records: where frames are, instead of frames."""
