import os
import time
from typing import Any

from django.core.management.base import BaseCommand

from shop.models import Sale
from zklock.contrib.django import claim, fenced_atomic, token


class Command(BaseCommand):  # type: ignore[misc]
    """Sells until it is killed."""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--times", type=int, default=10**6)

    def handle(self, *args: Any, **options: Any) -> None:
        mine = token()
        claim(mine, "sales")
        for _ in range(options["times"]):
            with fenced_atomic(mine, "sales"):
                Sale.objects.create(token=str(mine), process=os.getpid())
            time.sleep(0.02)
