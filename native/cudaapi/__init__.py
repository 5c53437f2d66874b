"""The CUDA driver API as data, for the libraries that implement or wrap it."""
