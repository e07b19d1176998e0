"""What a release gives to single people: rows of their own."""
