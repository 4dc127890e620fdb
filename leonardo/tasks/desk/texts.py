"""Families about the content of files: write, append, replace, count, search, sort, cut, and edit settings."""

from random import Random

from leonardo.tasks.desk.scene import (
    COUNTS,
    FOLDERS,
    KEYS,
    NUMBERS,
    STEMS,
    WORDS,
    Family,
    Scene,
    family,
    some_lines,
    some_words,
)


@family("write-file", folder=FOLDERS, name=STEMS, word=WORDS)
def write_file(random: Random, folder: str, name: str, word: str) -> Scene:
    path = f"/data/{folder}/{name}.txt"
    return Scene(
        phrasings=(f"Create the file {path} with the content {word}", f"Write the word {word} to the new file {path}"),
        set_up=(f"mkdir -p /data/{folder}",),
        after={path: (word,)},
        solution=(f"echo {word} > {path}",),
        right=((f"printf {word} > {path}",),),
        wrong=((f"touch {path}",), (f"mkdir {path}",)),
        partial=((f"echo {word}",),),
    )


@family("append-line", folder=FOLDERS, name=STEMS, word=WORDS)
def append_line(random: Random, folder: str, name: str, word: str) -> Scene:
    path = f"/data/{folder}/{name}.txt"
    lines = some_lines(random, 2)
    return Scene(
        phrasings=(f"Append the line {word} to {path}", f"Add {word} as the last line of {path}"),
        files={path: lines},
        after={path: (*lines, word)},
        solution=(f"echo {word} >> {path}",),
        right=((f"echo {word} | tee -a {path}",),),
        wrong=((f"echo {word} > {path}",), (f"echo {word} | tee {path}",)),
        partial=((f"cat {path}",),),
    )


@family("replace-word", folder=FOLDERS, name=STEMS, old=WORDS, new=WORDS)
def replace_word(random: Random, folder: str, name: str, old: str, new: str) -> Scene:
    path = f"/data/{folder}/{name}.txt"
    above, below = some_lines(random, 2, but=(old, new))
    (middle,) = some_words(random, 1, but=(old, new))
    return Scene(
        phrasings=(f"Replace every {old} by {new} in {path}", f"In {path} change each {old} to {new}"),
        files={path: (above, f"{old} {middle} {old}", below)},
        after={path: (above, f"{new} {middle} {new}", below)},
        solution=(f"sed -i 's/{old}/{new}/g' {path}",),
        wrong=((f"sed -i 's/{old}/{new}/' {path}",), (f"sed -i 's/{old}//g' {path}",)),
        partial=((f"sed 's/{old}/{new}/g' {path}",),),
    )


def _count(random: Random, folder: str, source: str, target: str, unit: str) -> Scene:
    path, result = f"/data/{folder}/{source}.txt", f"/data/{folder}/{target}.txt"
    lines = some_lines(random, random.randint(3, 8))
    flag, other, number = ("-l", "-w", len(lines)) if unit == "lines" else ("-w", "-l", 2 * len(lines))
    return Scene(
        phrasings=(f"Write the number of {unit} of {path} to {result}", f"Count the {unit} of {path} into {result}"),
        files={path: lines},
        after={result: (str(number),)},
        solution=(f"wc {flag} < {path} > {result}",),
        right=((f"cat {path} | wc {flag} > {result}",),),
        wrong=((f"wc {other} < {path} > {result}",), (f"wc {flag} {path} > {result}",)),
        partial=((f"wc {flag} {path}",),),
    )


@family("count-lines", folder=FOLDERS, source=STEMS, target=STEMS)
def count_lines(random: Random, folder: str, source: str, target: str) -> Scene:
    return _count(random, folder, source, target, "lines")


@family("count-words", folder=FOLDERS, source=STEMS, target=STEMS)
def count_words(random: Random, folder: str, source: str, target: str) -> Scene:
    return _count(random, folder, source, target, "words")


@family("search-lines", folder=FOLDERS, source=STEMS, target=STEMS, word=WORDS)
def search_lines(random: Random, folder: str, source: str, target: str, word: str) -> Scene:
    path, result = f"/data/{folder}/{source}.txt", f"/data/{folder}/{target}.txt"
    others = some_lines(random, 3, but=(word,))
    hits = tuple(f"{word} {other}" for other in some_words(random, 2, but=(word,)))
    return Scene(
        phrasings=(
            f"Write the lines of {path} with the word {word} to {result}",
            f"Search {word} in {path} and put the lines into {result}",
        ),
        files={path: (others[0], hits[0], others[1], hits[1], others[2])},
        after={result: hits},
        solution=(f"grep {word} {path} > {result}",),
        right=((f"cat {path} | grep {word} > {result}",),),
        wrong=((f"grep -v {word} {path} > {result}",), (f"grep -c {word} {path} > {result}",)),
        partial=((f"grep {word} {path}",),),
    )


@family("unique-lines", folder=FOLDERS, source=STEMS, target=STEMS)
def unique_lines(random: Random, folder: str, source: str, target: str) -> Scene:
    path, result = f"/data/{folder}/{source}.txt", f"/data/{folder}/{target}.txt"
    first, second, third = sorted(some_words(random, 3))
    return Scene(
        phrasings=(
            f"Sort {path} into {result}, each line once",
            f"Write the sorted lines of {path} without repeats to {result}",
        ),
        files={path: (third, first, second, first)},
        after={result: (first, second, third)},
        solution=(f"sort -u {path} > {result}",),
        right=((f"sort {path} | uniq > {result}",),),
        wrong=((f"sort {path} > {result}",), (f"uniq {path} > {result}",), (f"sort -r {path} > {result}",)),
        partial=((f"sort -u {path}",),),
    )


def _cut(random: Random, folder: str, source: str, target: str, count: str, end: str) -> Scene:
    path, result = f"/data/{folder}/{source}.txt", f"/data/{folder}/{target}.txt"
    lines = some_lines(random, 6)
    tool, other, kept = (
        ("head", "tail", lines[: int(count)]) if end == "first" else ("tail", "head", lines[-int(count) :])
    )
    return Scene(
        phrasings=(
            f"Write the {end} {count} lines of {path} to {result}",
            f"Put the {end} {count} lines of {path} into {result}",
        ),
        files={path: lines},
        after={result: kept},
        solution=(f"{tool} -n {count} {path} > {result}",),
        wrong=((f"{other} -n {count} {path} > {result}",), (f"{tool} -c {count} {path} > {result}",)),
        partial=((f"{tool} -n {count} {path}",),),
    )


@family("first-lines", folder=FOLDERS, source=STEMS, target=STEMS, count=COUNTS)
def first_lines(random: Random, folder: str, source: str, target: str, count: str) -> Scene:
    return _cut(random, folder, source, target, count, "first")


@family("last-lines", folder=FOLDERS, source=STEMS, target=STEMS, count=COUNTS)
def last_lines(random: Random, folder: str, source: str, target: str, count: str) -> Scene:
    return _cut(random, folder, source, target, count, "last")


@family("edit-config", folder=FOLDERS, name=STEMS, key=KEYS, value=NUMBERS)
def edit_config(random: Random, folder: str, name: str, key: str, value: str) -> Scene:
    path = f"/data/{folder}/{name}.conf"
    old, above = random.sample([number for number in NUMBERS if number != value], 2)
    first = random.choice([other for other in KEYS if other != key])
    rest = f"host={random.choice(WORDS)}"
    return Scene(
        phrasings=(f"Set {key} to {value} in {path}", f"Change the setting {key} of {path} to {value}"),
        files={path: (f"{first}={above}", f"{key}={old}", rest)},
        after={path: (f"{first}={above}", f"{key}={value}", rest)},
        solution=(f"sed -i 's/{key}=.*/{key}={value}/' {path}",),
        wrong=((f"echo {key}={value} > {path}",), (f"echo {key}={value} >> {path}",)),
        partial=((f"sed 's/{key}=.*/{key}={value}/' {path}",), (f"cat {path}",)),
    )


@family("edit-json", needs_look=True, folder=FOLDERS, name=STEMS, key=KEYS, value=NUMBERS)
def edit_json(random: Random, folder: str, name: str, key: str, value: str) -> Scene:
    path = f"/data/{folder}/{name}.json"
    old, below = random.sample([number for number in NUMBERS if number != value], 2)
    last = random.choice([other for other in KEYS if other != key])
    above, rest = f'  "name": "{random.choice(WORDS)}",', f'  "{last}": {below}'
    return Scene(
        phrasings=(f"Set {key} to {value} in {path}", f"Change the value of {key} in {path} to {value}"),
        files={path: ("{", above, f'  "{key}": {old},', rest, "}")},
        after={path: ("{", above, f'  "{key}": {value},', rest, "}")},
        solution=(f"cat {path}", f"sed -i 's/{old}/{value}/' {path}"),
        right=((f"grep {key} {path}", f"sed -i 's/{old}/{value}/' {path}"),),
        wrong=((f"cat {path}", f"echo {value} > {path}"), (f"cat {path}", f"echo {value} >> {path}")),
        partial=((f"cat {path}",), (f"cat {path}", f"sed 's/{old}/{value}/' {path}")),
    )


TEXTS: tuple[Family, ...] = (
    write_file,
    append_line,
    replace_word,
    count_lines,
    count_words,
    search_lines,
    unique_lines,
    first_lines,
    last_lines,
    edit_config,
    edit_json,
)
