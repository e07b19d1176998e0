"""Values randomized at the source: the protocol, its clients, and Laplace noise on single values."""
