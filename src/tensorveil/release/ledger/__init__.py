"""The budget ledger: a file of entries that can only grow."""
