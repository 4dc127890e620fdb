from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.settings import LAUNCH, find_settings
from leonardo.site import BootstrapSubstitute, load_site, normal_image


def test_the_desk_site_is_read() -> None:
    site = load_site("desk")
    assert site.name == "desk"
    substitute = site.base("docker://ubuntu:22.04").substitute
    assert isinstance(substitute, BootstrapSubstitute)
    assert substitute.set_up_constraints.pip
    assert substitute.reason


def test_every_site_file_is_valid() -> None:
    assert [load_site(path).name for path in (LAUNCH / "sites").glob("*.yaml")]


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("ubuntu:22.04", "ubuntu:22.04"),
        ("docker://ubuntu:22.04", "ubuntu:22.04"),
        ("docker://registry.example/library/ubuntu:22.04", "ubuntu:22.04"),
        ("library/ubuntu", "ubuntu:latest"),
        ("registry.example:5000/me/image", "registry.example:5000/me/image:latest"),
        ("me/image@sha256:abc", "me/image@sha256:abc"),
    ],
)
def test_one_name_an_image(name: str, normal: str) -> None:
    assert normal_image(name) == normal


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: x\nbases:\n  a:1:\n    regsitry: true\n", "bases.a:1.regsitry: unknown setting"),
        ("name: x\nspeed: 3\n", "speed: unknown setting"),
        ("bases: {}\n", "name: Field required"),
        ("name: x\nbases: {'a:1': {substitute: {kind: debootstrap}}}\n", "bases.a:1.substitute"),
        ("name: x\nbases: {'a:1': {substitute: {kind: archive, path: /x, reason: ''}}}\n", "reason"),
        ("- a\n", "holds no settings"),
        ("name: [x\n", "is not YAML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_site(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_site_names_those_there_are() -> None:
    with pytest.raises(InputError, match=r"No site moon\. Known sites: .*desk"):
        load_site("moon")


def test_the_cache_folder_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEONARDO_CACHE", str(tmp_path))
    assert load_site("desk").cache == tmp_path


def test_the_node_s_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEONARDO_NODE_CACHE", raising=False)
    (tmp_path / "site.yaml").write_text("name: here\nnode_cache: /local/me\n")
    assert load_site(tmp_path / "site.yaml").node_cache == Path("/local/me")
    (tmp_path / "variable.yaml").write_text("name: here\nnode_cache: $NO_SUCH/me\n")
    assert load_site(tmp_path / "variable.yaml").node_cache == Path("$NO_SUCH/me")
    assert load_site("desk").node_cache is None
    monkeypatch.setenv("LEONARDO_NODE_CACHE", "/scratch/me")
    assert load_site(tmp_path / "site.yaml").node_cache == load_site("desk").node_cache == Path("/scratch/me")


def test_settings_nested_too_deeply_are_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text("a: " + "[" * 3000)
    with pytest.raises(InputError, match="is not YAML"):
        load_site(tmp_path / "deep.yaml")


@pytest.mark.parametrize(("folder", "one"), [("families", "family"), ("studies", "study"), ("sites", "site")])
def test_settings_that_are_not_there_are_named_in_the_singular(folder: str, one: str) -> None:
    with pytest.raises(InputError, match=f"No {one} nope"):
        find_settings("nope", folder)
