"""`celery -A tests.fake_worker worker`: a real worker process around the stand-in for the pure half."""

from tests.pure_fake import install
from workers import main
from workers.main import app

install()
main.warm = lambda: None

__all__ = ["app"]
