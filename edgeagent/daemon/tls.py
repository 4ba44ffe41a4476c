"""The daemon's side of TLS: its certificate, and the oldest protocol version that it accepts."""

from __future__ import annotations

import ssl
from pathlib import Path

# OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
_TROUBLE = {9: "is not valid yet", 10: "has expired"}


def server_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Return a TLS context that accepts TLS 1.2 and later.

    Raise OSError if a file cannot be read or is not in PEM format, or if the key is encrypted or does not match the
    certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # This is Python's default, but a system's OpenSSL settings may override that.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password=_refuse_password)
    return context


def _refuse_password() -> bytes:
    # Without this, OpenSSL would ask for the password on the terminal.
    raise OSError("the key is encrypted; the daemon needs one without a password")


def trouble_with(context: ssl.SSLContext, certificate: Path) -> str | None:
    """Return a warning if the certificate has expired or is not valid yet; None if its dates are valid or unknown.

    `context` is the server's. Python's ssl module reads the dates of a peer's certificate only, so this function runs a
    TLS handshake in memory.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True))
    # Two calls on each side complete a handshake. The third is spare.
    for end in ends * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            reason = _TROUBLE.get(error.verify_code)
            return reason and f"the certificate {certificate} {reason}, so clients refuse it; replace it"
        except ssl.SSLError:
            return None
    return None
