"""From observations and a plan to a release."""
