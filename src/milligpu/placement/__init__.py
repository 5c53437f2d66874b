"""Which GPUs a request gets: pure decisions over a snapshot of the cluster.

`snapshot` has what is free on every GPU as arrays, `fit` says where a request can go, `score` and `packing` say
where it should go, `decide` puts them together, `refuse` says why nothing fits, and `defrag` plans moves that make
room. Nothing here does I/O or reads a clock; random numbers come from a seed.
"""
