"""What mechanisms work out from public numbers while planning: expected information, windows, weights."""
