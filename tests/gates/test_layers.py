"""Layers are read as the root that they belong to."""

from pathlib import Path

from leonardo.gates.layers import layer_digest, search_layer


def test_a_layer_of_the_caller_s_own_is_read(tmp_path: Path) -> None:
    """As a driver of one user id unpacks it: what root alone may read is the caller's, not a container root's."""
    secret = tmp_path / "etc/secret"
    secret.parent.mkdir()
    secret.write_text("the verifier\n")
    secret.chmod(0o600)
    assert search_layer(tmp_path, {"the verifier": "a copy"}) == ["/etc/secret: a copy"]
    before = layer_digest(tmp_path)
    secret.write_text("changed\n")
    assert layer_digest(tmp_path) != before
