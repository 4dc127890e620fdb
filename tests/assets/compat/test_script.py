from leonardo.assets.compat.script import commands_of

SCRIPT = """\
export A=1
apt-get update && apt-get install -y \\
    sudo "x; mount y" # mount z
cat << 'EOF' > /a; systemctl start x
mount /dev/sda /mnt
EOF
if mount a b; then echo "it; mount c"; fi
mount d e || true
FOO=1 BAR="a b" service nginx start 2>&1
mount f g; ( losetup -f )
cat <<-E2 | tee x
\tmount
\tE2
for i in 1 2; do sudo -u u id; done
echo a &> /dev/null; umount q
mount last && echo ok
grep <<< "mount; x" y
"""


def texts(script: str) -> list[str]:
    return [command.text for command in commands_of(script)]


def test_only_what_is_run_is_a_command() -> None:
    found = texts(SCRIPT)
    assert "mount /dev/sda /mnt" not in found  # in a here-document
    assert "mount" not in found
    assert not [text for text in found if text.startswith(("mount y", "mount z", "mount c", "mount; x"))]
    for expected in ("mount a b", "mount d e", "mount f g", "losetup -f", "systemctl start x", "umount q"):
        assert expected in found
    assert "service nginx start 2>&1" in found
    assert "sudo -u u id" in found
    assert 'apt-get install -y \\\n    sudo "x; mount y"' in found


def test_a_command_knows_its_place() -> None:
    for command in commands_of(SCRIPT):
        assert SCRIPT[command.start : command.end] == command.text
        assert SCRIPT.splitlines()[command.line - 1].find(command.text.splitlines()[0]) >= 0


def test_a_failure_that_somebody_looks_at_is_not_fatal() -> None:
    fatal = {command.text: command.fatal for command in commands_of(SCRIPT)}
    assert fatal["mount f g"]
    assert not fatal["mount a b"]  # if
    assert not fatal["mount d e"]  # ||
    assert not fatal["mount last"]  # &&
    assert not fatal["apt-get update"]


def test_a_script_that_goes_on_has_no_fatal_command() -> None:
    assert [command.fatal for command in commands_of("set +e\nmount a b\nset -e\nmount c d\n")][1::2] == [False, True]
    assert not any(command.fatal for command in commands_of("#!/bin/bash\nmount a b\n"))
    assert commands_of("#!/bin/bash\nset -euo pipefail\nmount a b\n")[-1].fatal


def test_text_that_ends_too_early_is_no_error() -> None:
    assert texts("echo 'open") == ["echo 'open"]
    assert texts("cat << EOF\nnever closed") == ["cat << EOF"]
    assert texts("") == texts("# only a remark") == []
    assert texts("echo \\") == ["echo \\"]
