"""What outlives a process: recordings as bytes, in files and under keys in stores.

`DiskStore` is a store in a folder, `Entries` keeps parts under a `Key` in it. `Tiers`
is a store of several: memory, a folder, and what machines share.
Nothing that is read runs; what is damaged is absent.
"""
