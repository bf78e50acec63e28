import json
import os

SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = ["zklock.contrib.django", "shop"]
ZKLOCK = {
    "HOSTS": os.environ.get("SHOP_HOSTS", ""),
    "ROOT": os.environ.get("SHOP_ROOT", "/shop"),
    "TIMEOUT": 4.0,
    "OPTIONS": {
        name: [tuple(each) for each in value] if name == "auth_data" else value
        for name, value in json.loads(os.environ.get("SHOP_OPTIONS", "{}")).items()
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_DATABASE"],
        "OPTIONS": {"timeout": 30},
        "TEST": {"NAME": f"{os.environ['SHOP_DATABASE']}.test"},  # not in memory: closable
    }
}
if port := os.environ.get("SHOP_POSTGRESQL"):
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "zklock",
        "HOST": "127.0.0.1",
        "PORT": port,
        "OPTIONS": {},
    }

if port := os.environ.get("SHOP_MARIADB"):
    import pymysql

    pymysql.install_as_MySQLdb()
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "zklock",
        "USER": "root",
        "HOST": "127.0.0.1",
        "PORT": port,
    }
