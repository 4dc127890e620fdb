import re
from pathlib import Path

import pytest
import yaml

from leonardo.assets.compat import Facility, adapt, lacking, load_rules, rules_digest
from leonardo.assets.compat.rules import RULES as FOLDER
from leonardo.errors import InputError
from tests.assets.compat.conftest import RULES, only

ROOT = Path(__file__).parents[3]
EVERYTHING = frozenset(Facility)
KINDS = {
    "apt and dpkg",
    "services without an init",
    "privileged paths, mounts and loop devices",
    "fixed ports",
    "sudo and ptys",
    "package managers at run time",
    "pip's system guard",
    "missing requests for verifiers",
    "ACLs and capabilities",
}

PLAIN = """\
mkdir -p /data && echo 'sudo mount systemctl chown pip install requests' > /data/note
cat << 'EOF' > /data/script.sh
sudo mount -o loop /disk.img /mnt
systemctl start nginx
import requests
EOF
chmod 755 /data/script.sh
for name in mount sudo; do echo "$name"; done
"""


def test_every_known_kind_has_a_rule() -> None:
    assert {rule.kind for rule in RULES.values()} == KINDS


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_names_the_test_that_holds_it(rule) -> None:
    path, name = rule.test.split("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_a_rule_does_not_touch_what_it_does_not_match() -> None:
    adaptation = adapt(PLAIN, "import os\n", load_rules(), EVERYTHING)
    assert adaptation.applied == ()
    assert adaptation.script == PLAIN
    assert adaptation == adapt(PLAIN, "", (), EVERYTHING)


@pytest.mark.parametrize(
    ("rule", "script"),
    [
        ("mounts-refused", "mount"),  # lists
        ("mounts-refused", "mount --help"),
        ("mounts-refused", "mount /dev/sda1 /mnt || true"),
        ("mounts-refused", "if mount /a /b; then echo yes; fi"),
        ("mounts-refused", "mountpoint /proc"),
        ("kernel-settings-refused", "sysctl vm.swappiness"),
        ("kernel-settings-refused", "echo 1 > /proc-sys"),
        ("device-nodes-refused", "mknod /pipe p"),
        ("limits-beyond-the-sandbox", "ulimit -n"),
        ("sudo-as-root", "echo sudo; cat sudo; /opt/sudoku"),
        ("pip-system-guard", "apt-get install -y python3"),
        ("services-share-ports", "apt-get install -y nginx redis-server"),
        ("systemctl-without-init", "cp systemctl /x"),
        ("owners-with-one-id", "chmod 644 /x; cp -r a b"),
        ("access-lists-with-one-id", "setfacl -b /x"),
    ],
)
def test_near_misses(rule: str, script: str) -> None:
    assert adapt(script, "", only(rule), EVERYTHING).applied == ()


@pytest.mark.parametrize(
    ("rule", "script", "why"),
    [
        ("mounts-refused", "cd /\nmount -o loop /disk.img /mnt", "line 2: mount -o loop /disk.img /mnt"),
        ("mounts-refused", "sudo mount /a /b", "line 1: sudo mount /a /b"),
        ("mounts-refused", "/sbin/losetup -f /x", "losetup -f"),
        ("kernel-settings-refused", "echo 1 > /proc/sys/net/ipv4/ip_forward", "ip_forward"),
        ("kernel-settings-refused", "sysctl -w vm.max_map_count=262144", "sysctl"),
        ("device-nodes-refused", "mknod -m 666 /dev/fuse c 10 229", "mknod"),
        ("sudo-as-root", "FOO=1 sudo -u postgres psql", "sudo -u postgres"),
        ("pip-system-guard", "python3.10 -m pip install x", "pip install x"),
        ("pip-system-guard", "apt-get install -y \\\n   curl \\\n   python3-pip", "python3-pip"),
        ("services-share-ports", "service postgresql start", "service postgresql"),
        ("services-share-ports", "/etc/init.d/redis start", "redis start"),
        ("owners-with-one-id", "chown -R user:user /home/user", "the site lacks user-ids; line 1: chown"),
    ],
)
def test_hits_and_why(rule: str, script: str, why: str) -> None:
    (applied,) = adapt(script, "", only(rule), EVERYTHING).applied
    assert why in applied.why


def test_a_site_that_has_what_a_rule_is_for_is_left_alone() -> None:
    script = "chown 33 /x\npip install pandas\n"
    rules = (*only("owners-with-one-id"), *only("pip-system-guard"))
    assert adapt(script, "", rules, lacking(one_id=False, substituted=False)).names == ()
    assert adapt(script, "", rules, lacking(one_id=True, substituted=False)).names == ("owners-with-one-id@1",)
    assert adapt(script, "", rules, lacking(one_id=False, substituted=True)).names == ("pip-system-guard@1",)


def test_a_change_of_a_rule_changes_its_digest() -> None:
    (rule,) = only("sudo-as-root")
    newer = rule.model_copy(update={"version": 2})
    assert newer.digest != rule.digest
    assert rules_digest([rule]) != rules_digest([newer])
    assert rules_digest([rule, *only("mounts-refused")]) == rules_digest([*only("mounts-refused"), rule])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"match": {"command": "("}}, "no regular expression"),
        ({"match": {"comand": "x"}}, "match.comand: Extra inputs"),
        ({"version": 0}, "version"),
        ({"effect": {"skip": {"failure": "no-such", "reason": "x"}}}, "effect.skip.failure"),
        ({"test": "nowhere"}, "test"),
    ],
)
def test_a_bad_rule_is_one_line(tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    (first, *_) = yaml.safe_load((FOLDER / "services.yaml").read_text())
    (tmp_path / "x.yaml").write_text(yaml.safe_dump([first | change]))
    with pytest.raises(InputError, match=re.escape(complaint)) as caught:
        load_rules(tmp_path)
    assert "\n" not in str(caught.value)
    assert "systemctl-without-init" in str(caught.value)


def test_two_rules_of_one_name_and_no_list(tmp_path: Path) -> None:
    text = (FOLDER / "services.yaml").read_text()
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(text)
    with pytest.raises(InputError, match="more than one rule is called services-share-ports"):
        load_rules(tmp_path)
    (tmp_path / "b.yaml").write_text("a: b\n")
    with pytest.raises(InputError, match="no list of rules"):
        load_rules(tmp_path)
