"""Telemetry: the events, what makes them, and their way to users' hooks.

For: events as frozen classes, what makes them of attempts and grants, and subscriptions.

May come in: what is told, and how it gets to those who have subscribed.

Must never: know a recipe, a client or kazoo, or call anything of the user's.
"""
