"""Mutants: small faults put into the core one at a time, to see whether a unit test notices.

``python -m tests.mutants`` makes them with cosmic-ray's operators and one of its own, and runs the
unit tests of the module for each. No file is changed: each mutant lives in a process of its own.
``modules.toml`` says which tests hold which module. ``explained.toml`` says why a mutant that no
test notices is no fault.
"""
