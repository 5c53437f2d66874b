"""Vendors' C interfaces as data, and the generator that completes our libraries from them."""
