"""``zklock demo``: what zklock is for, on real processes against a real ZooKeeper."""
