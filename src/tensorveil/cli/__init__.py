"""The command line: parses, calls, prints; one file per command. Commands import what they need when they run."""
