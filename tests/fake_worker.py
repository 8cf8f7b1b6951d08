"""`celery -A tests.fake_worker worker`: a real worker process around the stand-in for the pure half."""

from tests.pure_fake import install

install()

from workers.main import app  # noqa: E402

__all__ = ["app"]
