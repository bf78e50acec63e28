"""The base that all other rooms use.

For: the one clock, the check of numbers that users pass in, an event and a kept property that take
no lock, locks that no interrupt leaves taken, threads that serve everybody, a flag with a limited
wait for asyncio, the base class of what cannot be copied, how public classes name themselves, the
description of a loss, and the events of telemetry with their way to users' hooks.

May come in: what several rooms need, if it is not itself a part of ZooKeeper or of locks.

Must never: import any other room, or kazoo.
"""
