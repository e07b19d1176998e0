"""Reading observations from files: formats, labels, time bins."""
