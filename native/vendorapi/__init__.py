"""Vendors' C interfaces as data, and libraries that are completed from them."""
