"""The general caching allocator: size classes, streams, pools, history, settings.

`Allocator` decides by plain values and changes its state last; everything that
explains it (statistics, snapshots, out-of-memory texts) reads a `Picture`, never
live objects.
"""
