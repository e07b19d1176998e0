"""Files and columns in: formats, labels, time bins."""
