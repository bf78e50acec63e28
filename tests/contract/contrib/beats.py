"""A Celery app for the tests of beat; its broker is a folder."""

import os

from celery import Celery

FOLDER = os.environ["BEATS_FOLDER"]

app = Celery("beats")
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": FOLDER,
        "data_folder_out": FOLDER,
        "control_folder": FOLDER + "/control",
    },
    beat_schedule={
        "often.and again": {"task": "often", "schedule": 0.1},
        "daily": {"task": "daily", "schedule": 86400.0},
    },
    zklock_hosts=os.environ["BEATS_HOSTS"],
    zklock_path=os.environ["BEATS_PATH"] + "/beat",
    zklock_timeout=4.0,
)
