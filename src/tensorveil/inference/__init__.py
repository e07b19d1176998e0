"""From released numbers with a known noise law to a model: everything here is post-processing."""
