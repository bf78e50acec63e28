"""The demo: workers in processes of their own, what is done to them, and what that must show."""
