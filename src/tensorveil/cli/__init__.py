"""The command line: parses, calls, prints; one file a command. Commands import what they need when they run."""
