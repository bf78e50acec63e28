"""The demo: what happens to holders of locks, played and judged before your eyes."""
