"""The parts of benchmarks/accuracy.py: data, methods, runs, and the page and the pictures of their results."""
