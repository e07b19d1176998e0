"""Questions to the vault: what one shard contributes, and how far one privacy unit can move the sum."""
