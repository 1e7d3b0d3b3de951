"""Pages and ranges for recordings, a heap for eager arrays, over one driver."""
