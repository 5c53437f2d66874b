"""The read model of `top`, `ps`, `free`, `explain` and later the dashboard: typed values, no tables.

Starts nothing.
"""
