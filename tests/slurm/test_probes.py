"""The doctor's probes of a scheduler, where there is one: well, unreachable, and without the site's partitions."""

import os
import re
from pathlib import Path

import pytest

from leonardo.cluster import Cluster
from leonardo.probes import cluster
from leonardo.site import load_site


@pytest.fixture
def leonardo() -> Cluster:
    """The shipped site's, whose partitions this Slurm has."""
    found = load_site("leonardo").cluster
    assert found is not None
    return found


def test_well(leonardo: Cluster) -> None:
    """Answers, with the site's partitions."""
    assert cluster.scheduler().what == "partitions boost_usr_prod, cpu, dcgp_usr_prod, gpu, test"
    assert cluster.partitions(leonardo).state == "ok"


def test_partition_that_is_not_there(leonardo: Cluster) -> None:
    """Is named; with the site's pools mended, as suggested, all is well."""
    wrong = leonardo.pools["gpu"].model_copy(update={"partition": "boost_usr"})
    site = leonardo.model_copy(update={"pools": {"gpu": wrong}})
    found = cluster.partitions(site)
    assert (found.state, found.what) == ("missing", "no boost_usr")
    mended = wrong.model_copy(update={"partition": "boost_usr_prod"})
    assert cluster.partitions(site.model_copy(update={"pools": {"gpu": mended}})).state == "ok"


def test_controller_that_does_not_answer(leonardo: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's own words; nothing is said of partitions that nobody could ask for."""
    text = Path(os.environ["SLURM_CONF"]).read_text()
    dead = re.sub(r"SlurmctldHost=\S+", "SlurmctldHost=control(127.0.0.1)\nSlurmctldPort=9\nMessageTimeout=2", text)
    (tmp_path / "slurm.conf").write_text(dead)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    found = cluster.scheduler()
    assert found.state == "missing" and found.what.startswith("sinfo does not answer (")
    assert cluster.partitions(leonardo).what.startswith("scontrol does not answer (")
