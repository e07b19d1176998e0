"""Commands that prepare data before a release."""
