"""Which GPUs a request gets: pure decisions over a snapshot of the cluster.

`snapshot` keeps the books as arrays, `fit` says where a request can go, `score` and `packing` say where it
should, `decide` puts them together, `refuse` says why nothing fits, and `defrag` plans moves that make room.
Nothing here does I/O or reads a clock; chance comes as a seed.
"""
