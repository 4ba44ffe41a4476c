"""Encrypts and authenticates kept answers, with keys derived from a secret: the installation's, or a shared one.

A sealed answer opens only under its own key, so one answer cannot be put in the place of another.
"""

from __future__ import annotations

import hashlib
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

_NONCE_BYTES = 12


class Seal:
    """Seals what is kept under a key, and opens it. `key_secret`: the secret with which keys of answers are made."""

    def __init__(self, secret: bytes) -> None:
        self.key_secret = _derived(secret, b"keys of answers")
        self._cipher = ChaCha20Poly1305(_derived(secret, b"answers"))

    def seal(self, key: bytes, content: bytes) -> bytes:
        """Return the content as only `open` with the same key and secret can read it."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, content, key)

    def open(self, key: bytes, sealed: bytes) -> bytes | None:
        """Return the content; None if it was changed, or sealed under another key or with another secret."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], key)
        except (InvalidTag, ValueError):
            return None


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(purpose, key=secret, person=b"edgeagent seal", digest_size=32).digest()
