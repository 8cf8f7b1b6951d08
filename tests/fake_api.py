from tests.pure_fake import install

install()
