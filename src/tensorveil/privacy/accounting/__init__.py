"""What readings of the data cost: events, their composition, and the filters of ledgers."""
