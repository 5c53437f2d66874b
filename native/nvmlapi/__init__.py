"""The management API (NVML) as data, for every library of ours that speaks it."""
