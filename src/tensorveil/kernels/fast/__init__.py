"""The same computations at full speed: vectors, registers, threads."""
