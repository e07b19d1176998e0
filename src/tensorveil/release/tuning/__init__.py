"""A choice among models that costs no privacy."""
