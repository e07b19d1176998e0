"""The certificate of a release, and how it is verified."""
