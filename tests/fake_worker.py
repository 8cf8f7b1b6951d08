"""`celery -A tests.fake_worker worker`: a real worker process around the stand-in for the pure half."""

from tests.pure_fake import install
from workers.main import app
from workers.replay import loop

install()
loop.warm = lambda: None

__all__ = ["app"]
