"""The asyncio front."""
