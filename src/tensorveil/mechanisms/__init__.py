"""Ways to make a completion private."""
