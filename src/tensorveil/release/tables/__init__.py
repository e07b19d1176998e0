"""From tables to vaults: what is clipped, counted and checked before anything is spent."""
