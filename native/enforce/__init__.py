"""The generators of the limits library."""
