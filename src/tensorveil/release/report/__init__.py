"""The report of a release and its pictures."""
