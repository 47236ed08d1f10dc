"""Names that a person means by a word."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.limit_changes import scope_named
from tests.controller.world import make_config


def test_a_clouds_only_pool_that_has_its_name_is_no_other_thing(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    rack, burst = config.pools
    same = replace(config, pools=(rack, replace(burst, name="pub")))
    assert scope_named(same, "pub") == "cloud:pub"
    assert scope_named(same, "pool:pub") == "pool:pub"
    two = replace(same, pools=(*same.pools, replace(burst, name="more", nodes="more1")))
    with pytest.raises(ConfigError, match="'pub' is a cloud and a pool: say cloud:pub or pool:pub"):
        scope_named(two, "pub")
    other = replace(config, pools=(replace(rack, name="pub"), burst))
    with pytest.raises(ConfigError, match="is a cloud and a pool"):
        scope_named(other, "pub")
