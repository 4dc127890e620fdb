"""Families about where things are: move, copy, find, clean, pack; and about modes, links, scripts and processes."""

from random import Random

from leonardo.tasks.desk.scene import (
    FOLDERS,
    KINDS,
    MODES,
    NUMBERS,
    STEMS,
    WORDS,
    Family,
    Scene,
    family,
    printed,
    some_lines,
)

# name -> operator, none of them special in a sed pattern, and the value for 17 and 5
OPERATORS = {"sum": ("+", 22), "difference": ("-", 12), "remainder": ("%", 2)}


@family("rename-file", folder=FOLDERS, source=STEMS, target=STEMS)
def rename_file(random: Random, folder: str, source: str, target: str) -> Scene:
    old, new = f"/data/{folder}/{source}.txt", f"/data/{folder}/{target}.txt"
    lines = some_lines(random, 2)
    return Scene(
        phrasings=(f"Rename {old} to {new}", f"Give the file {old} the new name {new}"),
        files={old: lines},
        after={old: None, new: lines},
        solution=(f"mv {old} {new}",),
        right=((f"cp {old} {new}", f"rm {old}"),),
        wrong=((f"ln {old} {new}",), (f"ln -s {old} {new}",)),
        partial=((f"cp {old} {new}",),),
    )


@family("rename-only", needs_look=True, folder=FOLDERS, kind=KINDS, target=STEMS)
def rename_only(random: Random, folder: str, kind: str, target: str) -> Scene:
    place = f"/data/{folder}"
    hidden, *others = random.sample([stem for stem in STEMS if stem != target], 3)
    old, new, look = f"{place}/{hidden}.{kind}", f"{place}/{target}.txt", f"ls {place}/*.{kind}"
    lines = some_lines(random, 1)
    return Scene(
        phrasings=(
            f"Rename the only {kind} file in {place} to {new}",
            f"{place} has one {kind} file, move it to {new}",
        ),
        files={old: lines} | {f"{place}/{other}.md": some_lines(random, 1) for other in others},
        after={old: None, new: lines},
        solution=(look, f"mv {old} {new}"),
        wrong=((look, f"cp {old} {new}"), (look, f"ln {old} {new}")),
        partial=((look,),),
    )


@family("move-match", needs_look=True, source=FOLDERS, target=FOLDERS, word=WORDS)
def move_match(random: Random, source: str, target: str, word: str) -> Scene:
    names = random.sample(STEMS, 3)
    hit, *others = (f"/data/{source}/{name}.txt" for name in names)
    lines = (word, *some_lines(random, 1, but=(word,)))
    look = f"grep -l {word} /data/{source}/*"
    return Scene(
        phrasings=(
            f"Move the file in /data/{source} that contains {word} to /data/{target}",
            f"One file in /data/{source} has the word {word}, move it into /data/{target}",
        ),
        files={hit: lines} | {other: some_lines(random, 2, but=(word,)) for other in others},
        set_up=(f"mkdir -p /data/{target}",),
        after={hit: None, f"/data/{target}/{names[0]}.txt": lines},
        solution=(look, f"mv {hit} /data/{target}"),
        right=((f"grep {word} /data/{source}/*", f"mv {hit} /data/{target}"),),
        wrong=((look, f"cp {hit} /data/{target}"), (look, f"ln {hit} /data/{target}")),
        partial=((look,),),
    )


@family("copy-tree", folder=FOLDERS, source=STEMS, target=STEMS)
def copy_tree(random: Random, folder: str, source: str, target: str) -> Scene:
    old, new = f"/data/{folder}/{source}", f"/data/{folder}/{target}"
    files = {f"/{name}.txt": some_lines(random, 1) for name in random.sample(STEMS, 2)}
    return Scene(
        phrasings=(f"Copy the folder {old} to {new}", f"Duplicate the folder {old} with all its files as {new}"),
        files={old + name: lines for name, lines in files.items()},
        after={new + name: lines for name, lines in files.items()},
        solution=(f"cp -r {old} {new}",),
        right=((f"cp -a {old} {new}",),),
        wrong=((f"cp {old} {new}",), (f"mv {old} {new}",)),
        partial=((f"mkdir {new}",),),
    )


@family("make-folders", folder=FOLDERS, name=STEMS, word=WORDS)
def make_folders(random: Random, folder: str, name: str, word: str) -> Scene:
    path = f"/data/{folder}/{name}/{word}"
    return Scene(
        phrasings=(f"Create the folder {path}", f"Make the folder {path} and those above it"),
        set_up=("mkdir -p /data",),
        checks=(f'[ "$(readlink -f {path})" = {path} ] && [ -d {path} ]',),
        solution=(f"mkdir -p {path}",),
        wrong=((f"mkdir {path}",), (f"touch {path}",)),
        partial=((f"mkdir /data/{folder}",),),
    )


@family("clean-folder", folder=FOLDERS, name=STEMS, kind=KINDS)
def clean_folder(random: Random, folder: str, name: str, kind: str) -> Scene:
    place = f"/data/{folder}/{name}"
    stems = random.sample(STEMS, 4)
    doomed = [f"{place}/{stem}.{kind}" for stem in stems[:2]]
    kept = [f"{place}/{stem}.txt" for stem in stems[2:]]
    return Scene(
        phrasings=(f"Delete all {kind} files in {place}", f"Remove every {kind} file from {place} and keep the rest"),
        files={path: some_lines(random, 1) for path in doomed + kept},
        after=dict.fromkeys(doomed),
        solution=(f"rm {place}/*.{kind}",),
        right=((f"find {place} -name '*.{kind}' -delete",),),
        wrong=((f"rm {place}/*",), (f"rm -r {place}",)),
        partial=((f"ls {place}",),),
    )


@family("pack-folder", folder=FOLDERS, source=STEMS, target=STEMS)
def pack_folder(random: Random, folder: str, source: str, target: str) -> Scene:
    place, archive = f"/data/{folder}/{source}", f"/data/{folder}/{target}.tar.gz"
    inside, lines = f"{random.choice(STEMS)}.txt", some_lines(random, 2)
    return Scene(
        phrasings=(f"Make the archive {archive} of {place}", f"Create {archive} from the folder {place}"),
        files={f"{place}/{inside}": lines},
        checks=(
            f"gzip -t {archive}",
            f"tar -tzf {archive} | grep -qE '(^|/){source}/{inside}$'",
            f'[ "$(tar -xzOf {archive})" = "$({printed(lines)})" ]',
        ),
        solution=(f"tar -czf {archive} {place}",),
        wrong=((f"tar -cf {archive} {place}",), (f"tar -xzf {archive} {place}",)),
        partial=((f"ls {place}",),),
    )


@family("unpack-archive", folder=FOLDERS, source=STEMS, target=STEMS)
def unpack_archive(random: Random, folder: str, source: str, target: str) -> Scene:
    archive, place = f"/data/{folder}/{source}.tar.gz", f"/data/{folder}/{target}"
    inside, lines = f"{random.choice(STEMS)}.txt", some_lines(random, 2)
    return Scene(
        phrasings=(
            f"Make the folder {place} and unpack {archive} there",
            f"Into the new folder {place} extract {archive}",
        ),
        set_up=(
            f"mkdir -p /data/{folder}",
            f"cd /data/{folder}",
            f"{printed(lines)} > {inside}",
            # a fixed time: the same task has the same initial state whenever it is built
            f"tar --mtime=@0 -czf {archive} {inside}",
            f"rm {inside}",
        ),
        after={f"{place}/{inside}": lines},
        solution=(f"mkdir {place}", f"tar -xzf {archive} -C {place}"),
        right=((f"mkdir -p {place}", f"tar -xf {archive} -C {place}"),),
        wrong=((f"mkdir {place}", f"tar -tzf {archive} -C {place}"), (f"mkdir {place}", f"cp {archive} {place}")),
        partial=((f"mkdir {place}",),),
    )


@family("set-mode", folder=FOLDERS, name=STEMS, mode=MODES)
def set_mode(random: Random, folder: str, name: str, mode: str) -> Scene:
    path = f"/data/{folder}/{name}.txt"
    return Scene(
        phrasings=(f"Give {path} the mode {mode}", f"Set the permissions of {path} to {mode}"),
        files={path: some_lines(random, 1)},
        set_up=(f"chmod 604 {path}",),
        checks=(f'[ "$(stat -c %a {path})" = {mode} ]',),
        solution=(f"chmod {mode} {path}",),
        wrong=((f"chmod 777 {path}",), (f"chmod +x {path}",), (f"chown {mode} {path}",)),
        partial=((f"ls -l {path}",),),
    )


@family("link-file", folder=FOLDERS, name=STEMS, link=STEMS)
def link_file(random: Random, folder: str, name: str, link: str) -> Scene:
    path, pointer = f"/data/{folder}/{name}.txt", f"/data/{folder}/{link}.txt"
    return Scene(
        phrasings=(f"Give {path} the symbolic link {pointer}", f"Link {path} symbolically as {pointer}"),
        files={path: some_lines(random, 1)},
        checks=(f'[ -L {pointer} ] && [ "$(readlink -f {pointer})" = {path} ]',),
        solution=(f"ln -s {path} {pointer}",),
        wrong=((f"ln {path} {pointer}",), (f"cp {path} {pointer}",)),
        partial=((f"ls -l {path}",),),
    )


@family("repair-script", needs_look=True, folder=FOLDERS, name=STEMS, wanted=tuple(OPERATORS))
def repair_script(random: Random, folder: str, name: str, wanted: str) -> Scene:
    path = f"/data/{folder}/{name}.sh"
    right, value = OPERATORS[wanted]
    fault, other = random.sample([operator for operator, _ in OPERATORS.values() if operator != right], 2)
    first, second = random.sample(NUMBERS, 2)
    # the verifier runs the script on numbers of its own, so that printing the answer is not enough
    changed = f"sed 's/^a=.*/a=17/; s/^b=.*/b=5/' {path}"
    return Scene(
        phrasings=(
            f"Repair {path}, it must print the {wanted} of a and b",
            f"The script {path} must print the {wanted} of a and b, fix it",
        ),
        set_up=(
            f"mkdir -p /data/{folder}",
            printed(("#!/bin/bash", f"a={first}", f"b={second}", f"echo $((a {fault} b))")) + f" > {path}",
        ),
        checks=(
            f'[ "$({changed} | bash)" = {value} ]',
            f'[ "$(bash {path})" = "$(({first} {right} {second}))" ]',
        ),
        solution=(f"cat {path}", f"sed -i 's/{fault}/{right}/' {path}"),
        wrong=((f"cat {path}", f"sed -i 's/{fault}/{other}/' {path}"),),
        partial=((f"cat {path}",), (f"cat {path}", f"sed 's/{fault}/{right}/' {path}")),
    )


@family("start-service", folder=FOLDERS, name=STEMS, target=STEMS)
def start_service(random: Random, folder: str, name: str, target: str) -> Scene:
    script, identity, beat = f"/data/{folder}/{name}.sh", f"/data/{folder}/{target}.pid", f"/data/{folder}/{name}.beat"
    # no output of its own, so that whoever started it need not wait for its end
    loop = ("#!/bin/bash", "exec > /dev/null 2>&1", f"while sleep 0.1; do echo alive > {beat}; done")
    return Scene(
        phrasings=(
            f"Start {script} in the background and write its process id to {identity}",
            f"Run the service {script} in the background, its process id goes to {identity}",
        ),
        files={script: loop},
        checks=(
            f"grep -qxE '[0-9]+' {identity}",
            f'tr "\\0" " " < /proc/$(cat {identity})/cmdline | grep -qF " {script} "',
            f"{{ rm -f {beat}; for i in {{1..50}}; do [ -e {beat} ] && break; sleep 0.1; done; [ -e {beat} ]; }}",
        ),
        solution=(f"bash {script} & echo $! > {identity}",),
        right=((f"nohup bash {script} & echo $! > {identity}",), (f"setsid bash {script} & echo $! > {identity}",)),
        wrong=((f"bash {script} & echo $$ > {identity}",), (f"bash -n {script} & echo $! > {identity}",)),
        partial=((f"bash {script} &",),),
    )


PLACES: tuple[Family, ...] = (
    rename_file,
    rename_only,
    move_match,
    copy_tree,
    make_folders,
    clean_folder,
    pack_folder,
    unpack_archive,
    set_mode,
    link_file,
    repair_script,
    start_service,
)
