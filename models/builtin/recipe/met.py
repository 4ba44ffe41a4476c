"""Test wordings that the shipped target met in training, before the test set was sealed. The test set omits them.

They are stored as hashes, so that people who train the model further do not read them.
"""

from __future__ import annotations

import hashlib

from .samples import shape

_MET = """
020ab12f 0429cd2d 051269a4 06cd6618 0d4fc4a7 11a62c23 123b125e 16737ff4 17c49f66 1babee04 1c61190c 1d12ca54
1d7eb1cc 1f1c5b2f 2274967a 23ed8767 25957364 26015824 26e784ba 292747d9 297e708b 2a016aa4 2c124f2f 32ecc531
337e8298 37053e52 41bdb5f5 449d71ed 472fb700 47ec6f85 489a4224 48b5d726 497a0b77 4f2e3df8 508bab80 5694d08a
5d137e60 6059a376 6083e413 614bf0fa 63391535 683f29a7 69e56efc 6a92c133 6e98a3b0 72ec5012 7491cdc2 78060c9f
7b8f5d49 7f815fdc 80253787 82a3537f 8b6aad57 8e32d377 8f723315 918bf6c9 9192c977 94affe83 950b7b85 9682a6e2
977be062 9c2910f4 9caff9e0 9ded660c 9ff752e7 a2731155 a7976eb3 ad22a0cf ad39b648 b465b338 b5ad9188 b65b29db
ba76025b bd8ccdb7 bf869161 c1115b32 c821c91d ce9fa6fc d040bd4e d2d53efb d2ee5c62 d9ace543 dab7fb09 dbb08132
dce69730 e10cab6f e2f03945 e5c75974 e5e5afaf e9845df0 e9a2685f ea8adc0f ead09176 f09f69e1 f75e54e3 fde71fab
ff6e4fcd fff1a142
"""


def is_met(wording: str) -> bool:
    """Return whether the shipped target met a wording in training. Such a wording cannot test that model."""
    return hashlib.sha256(shape(wording).encode()).hexdigest()[:8] in _MET.split()
