"""One certificate authority for all tests of remotes."""

from __future__ import annotations

import pytest

from tests.backends.remote.certificates import Authority, Certificate


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def good(authority: Authority) -> Certificate:
    return authority.signed("good")
