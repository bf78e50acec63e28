"""The parts of ``SqlGuard``: the statements, the databases' errors, the drivers."""
