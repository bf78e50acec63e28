"""The worker pool: shards of work, spread over the workers that are alive.

For: ``keys`` (numbers and names of shards; pure); ``nodes`` (the nodes in ZooKeeper);
``assignment`` and ``newcomers`` (who gets which shards; pure); ``rebalancer`` (the leader's
work); ``runners`` and ``processes`` (they run handlers); ``slot_states`` and
``slot`` (a worker's shards); ``task_queue``, ``member_states``, ``worker``,
``views`` and ``member`` (the rest of a worker, which waits through its front only). ``threads`` is
the layer that waits, for threads.

May come in: other things that a worker of a pool does.

Must never: let the rest import ``threads``, or run a handler on the thread that decides.
"""
