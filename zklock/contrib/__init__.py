"""zklock inside of frameworks: one adapter a module, each with an extra of its own.

For: teams that have a framework already, and need one of their processes to do the work.

May come in: the framework that the module is named for; public names of zklock;
``_ground.interrupts``, which tells what a signal handler has raised.

Must never: import another private room of zklock, or be imported by the rest of zklock. Nothing is
imported here: a module is loaded when it is asked for.
"""
