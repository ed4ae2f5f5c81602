#!/usr/bin/env python3
"""Judges llhttp's test vectors with Hoopsnake's HTTP machine.

The vectors are llhttp's own (Node.js), as they come in aiohttp's source distribution: the script
downloads it once into a cache folder (`--vectors DIR` takes an unpacked `llhttp/test` instead; then
nothing is downloaded). Each vector goes to the example program `http_verdict`; the outcome is
compared with llhttp's own, which stands in the vector, and with the committed file
`llhttp-expected.json`. There every difference between llhttp and us has its reason.

    cargo build -p hoopsnake-server --example http_verdict
    python3 tests/vectors/llhttp.py

`--update` rewrites the verdicts of the expectation file, keeps its reasons, and still fails while a
difference has none.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "llhttp-expected.json"
CACHE = HERE / ".cache"
PROGRAM = HERE.parent.parent / "target" / "debug" / "examples" / "http_verdict"
SDIST = "aiohttp==3.14.5"
SDIST_FILE = "aiohttp-3.14.5.tar.gz"
SDIST_SHA256 = "5558a7f5a05af9ecf744af91e5baefc436f93c9333e656c27ec253f9a6bbe178"
# llhttp stops here because another protocol takes over; nothing was wrong with the request.
HAND_OVER_CODES = {"21", "22", "23"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", type=Path, help="an unpacked llhttp/test folder")
    parser.add_argument("--program", type=Path, default=PROGRAM, help="http_verdict")
    parser.add_argument("--update", action="store_true", help="rewrite the expected verdicts")
    options = parser.parse_args()
    if not options.program.is_file():
        sys.exit(
            f"{options.program} is not there: "
            "cargo build -p hoopsnake-server --example http_verdict"
        )
    vectors = read_vectors(options.vectors or downloaded_vectors())
    actual = {vector["name"]: judge(vector, options.program) for vector in vectors}
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.is_file() else {}
    for name, entry in actual.items():
        if entry["llhttp"] != entry["ours"]:
            entry["reason"] = expected.get(name, {}).get("reason", "")
    if options.update:
        EXPECTED.write_text(json.dumps(actual, indent=1, ensure_ascii=False) + "\n")
        expected = actual
    sys.exit(report(actual, expected))


def report(actual, expected):
    """Prints what differs from the expectation; gives the exit code."""
    problems = []
    for name in sorted(actual.keys() | expected.keys()):
        if actual.get(name) != expected.get(name):
            problems.append(f"{name}: expected {expected.get(name)}, is {actual.get(name)}")
        elif actual[name].get("reason") == "":
            problems.append(f"{name}: differs from llhttp without a reason: {actual[name]}")
    different = [entry for entry in actual.values() if entry["llhttp"] != entry["ours"]]
    for problem in problems:
        print(problem)
    print(
        f"llhttp vectors: {len(actual)}, same as llhttp: {len(actual) - len(different)}, "
        f"different with a reason: {sum(bool(entry['reason']) for entry in different)}, "
        f"not as expected: {len(problems)}"
    )
    return 1 if problems or not actual else 0


def downloaded_vectors():
    folder = CACHE / "llhttp-test"
    if folder.is_dir():
        return folder
    CACHE.mkdir(exist_ok=True)
    sdist = CACHE / SDIST_FILE
    if not sdist.is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "aiohttp", "--dest", str(CACHE), SDIST]
        subprocess.run(command, check=True)
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        sys.exit(f"{sdist} has the SHA-256 {digest}, not {SDIST_SHA256}: remove it")
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch, tarfile.open(sdist) as archive:
        marker = "/vendor/llhttp/test/"
        for member in archive.getmembers():
            if member.isfile() and marker in member.name and member.name.endswith(".md"):
                target = Path(scratch, "test", member.name.split(marker)[1])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.extractfile(member).read())
        Path(scratch, "test").rename(folder)
    return folder


def read_vectors(folder):
    """All vectors of requests, and those of URLs as targets of a GET."""
    files = [folder / "url.md", *sorted((folder / "request").glob("*.md"))]
    vectors = []
    for path in files:
        vectors += read_file(path, path.relative_to(folder).with_suffix("").as_posix())
    return vectors


def read_file(path, prefix):
    vectors = []
    heading = kind = text = fence = None
    lines = []
    for line in path.read_text().splitlines(keepends=True):
        if fence is not None:
            if line.startswith("```"):
                if fence == "log":
                    name = f"{prefix}: {heading}"
                    name += f" ({kind})" if kind not in ("request", "url") else ""
                    same = sum(vector["heading"] == name for vector in vectors)
                    numbered = f"{name} #{same + 1}" if same else name
                    vector = {"name": numbered, "heading": name, "kind": kind, "text": text}
                    vectors.append(vector | {"log": "".join(lines)})
                else:
                    text = "".join(lines)
                    kind = "url" if fence == "url" else kind
                fence = None
            else:
                lines.append(line)
        elif line.startswith("```"):
            fence, lines = line[3:].strip(), []
        elif line.startswith("#"):
            heading = line.strip("# \n")
        elif match := re.match(r"<!-- meta=(\{.*\})", line):
            kind = json.loads(match[1]).get("type", kind)
    return vectors


def unescape(text):
    """What llhttp's own runner (test/md-test.ts) does to a vector's text."""
    text = re.sub(r"\n\Z", "", text)
    text = re.sub(r"\\(\r\n|\r|\n)", "", text)
    text = re.sub(r"\r\n|\r|\n", "\r\n", text)
    for escaped, byte in (("\\r", "\r"), ("\\n", "\n"), ("\\t", "\t"), ("\\f", "\f")):
        text = text.replace(escaped, byte)
    text = re.sub(r"\\x([0-9a-fA-F]+)", lambda match: chr(int(match[1], 16)), text)
    return re.sub(r"\\([0-7]{1,3})", lambda match: chr(int(match[1], 8)), text)


REQUEST_LINE = re.compile(r"(?:^|(?<=\n))([^ \r\n]+ )([^\r\n]*)( HTTP/1\.[01]\r\n)")


def repair(text, keep_fragment):
    """Adds the Host field that HTTP/1.1 demands and most vectors lack, and takes fragments from
    targets where the vector is not about them, so that each is judged by what it is about."""

    def repaired(match):
        method, target, version = match.groups()
        head = match.string[match.end() :].split("\r\n\r\n")[0]
        has_host = re.search(r"^host[ \t]*:", head, re.IGNORECASE | re.MULTILINE)
        host = "" if has_host or "1.1" not in version else "Host: vector.example\r\n"
        target = target if keep_fragment else target.split("#")[0]
        return f"{method}{target}{version}{host}"

    return REQUEST_LINE.sub(repaired, text)


def judge(vector, program):
    text = unescape(vector["text"])
    if vector["kind"] == "url":
        text = f"GET {text} HTTP/1.1\r\n\r\n"
    text = repair(text, keep_fragment=re.search("^url: |Fragment", vector["name"]))
    llhttp = llhttp_verdict(vector)
    ours, violation = our_verdict(vector, run(program, text))
    entry = {"llhttp": llhttp, "ours": ours}
    if llhttp.startswith("reject") and ours.startswith("incomplete"):
        # llhttp stops at the byte that is wrong. We look at a line when it is complete, and at the
        # fields when the head is.
        entry["ours"], violation = our_verdict(vector, run(program, text + "\r\n\r\n"))
        entry["added"] = "an end of the head"
    if violation:
        entry["violation"] = violation
    return entry


def run(program, text):
    result = subprocess.run(
        [program], input=text.encode(), stdout=subprocess.PIPE, timeout=10, check=True
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def our_verdict(vector, events):
    """The verdict in the words of llhttp_verdict, and the violation's name."""
    end = events[-1]
    violation = end["name"] if end["event"] == "violation" else None
    if vector["kind"] == "url":
        return ("reject" if violation else "accept"), violation
    requests = sum(event["event"] == "complete" for event in events)
    body = sum(event["bytes"] for event in events if event["event"] == "body")
    outcome = "reject" if violation else "incomplete" if end["mid_request"] else "accept"
    return f"{outcome}, {requests} complete, {body} bytes of body", violation


def llhttp_verdict(vector):
    log = vector["log"]
    errors = re.findall(r"error code=(\d+)", log)
    rejected = any(code not in HAND_OVER_CODES for code in errors)
    if vector["kind"] == "url":
        return "reject" if rejected else "accept"
    begun = len(re.findall(r"message begin", log))
    complete = len(re.findall(r"message complete", log))
    body = sum(int(length) for length in re.findall(r"len=(\d+) span\[body\]", log))
    outcome = "reject" if rejected else "incomplete" if begun > complete else "accept"
    return f"{outcome}, {complete} complete, {body} bytes of body"


if __name__ == "__main__":
    main()
