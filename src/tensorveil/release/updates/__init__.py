"""Releases that follow earlier ones: later data with a budget of their own."""
