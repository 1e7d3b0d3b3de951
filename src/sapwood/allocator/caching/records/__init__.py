"""What happened, and how often: counters, statistics, history."""
