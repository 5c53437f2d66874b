"""The recorder of driver calls."""
