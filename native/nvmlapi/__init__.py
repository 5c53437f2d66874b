"""The management API (NVML) as data, for the libraries that implement or wrap it."""
