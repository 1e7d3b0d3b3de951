"""An allocator as data for others: pictures, our JSON, PyTorch's snapshots."""
