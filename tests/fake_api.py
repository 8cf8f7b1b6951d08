from tests.pure_fake import install
install()
from app.main import app
