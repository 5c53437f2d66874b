"""The CUDA driver API as data, for every library of ours that speaks it."""
