from django.db import models


class Sale(models.Model):  # type: ignore[misc]
    """Something that only the present holder may write."""

    token = models.CharField(max_length=64)
    process = models.IntegerField()
