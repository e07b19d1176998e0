"""Where shards of the data live and where work on them runs."""
