"""gunicorn's configuration for ``served:plain``."""

from tests.contract.contrib.served import background

workers = 3
post_fork = background.post_fork
worker_exit = background.worker_exit
graceful_timeout = 15
