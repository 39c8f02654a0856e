"""Lets the clients of this process trust the certificate of the stand-ins.

The clients of HTTP take the certificates of the variable SSL_CERT_FILE. Those of AMQP take the
certificates of `certifi` only, so this process has others in their place. The app itself has no
setting for that.
"""

import os

import certifi


def this_machine() -> None:
    file = os.environ["SSL_CERT_FILE"]
    certifi.where = lambda: file
