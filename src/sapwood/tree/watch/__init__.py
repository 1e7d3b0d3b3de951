"""Running a function while it is watched: as a warm-up, or captured."""
