"""The browser app: the command line's jobs, ledger and releases on a page that this computer alone can open."""
