"""The limits library's generated part."""
