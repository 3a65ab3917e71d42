"""Read pytest's JUnit report: say what was skipped and why, and fail where too much was.

    python .ci/report.py REPORT.xml WORD...

For each WORD (`torch`, `cupy`, ...) at least one test with the word in its file, class or function
name must have passed, and none may have been skipped for want of it. A machine without a GPU is
no such want: a skip whose reason says "needs a GPU" or names cuBLAS is accepted.
The last line that is printed is the sum: `N passed, N failed, N skipped`.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree

NEEDS_A_GPU = re.compile("needs a GPU|cuBLAS")


def read(path):
    """Names of the tests that passed and failed; (name, reason) of those skipped and xfailed."""
    passed, failed, skipped, xfailed = [], [], [], []
    for case in ElementTree.parse(path).iter("testcase"):
        name = "::".join(part for part in (case.get("classname"), case.get("name")) if part)
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skip is None:
            passed.append(name)
        else:
            # A whole file that is skipped at its import has the reason in the text alone.
            reason = skip.get("message", "")
            if reason == "collection skipped":
                reason = (skip.text or reason).strip()
            (xfailed if skip.get("type") == "pytest.xfail" else skipped).append((name, reason))
    return passed, failed, skipped, xfailed


def main(path, *words):
    """Print what was skipped and what is wrong; exit with 1 if anything is."""
    passed, failed, skipped, xfailed = read(path)
    wrong = [f"{name} failed" for name in failed]
    if not passed:
        wrong.append("no test passed")
    for word in words:
        if not any(word in name.lower() for name in passed):
            wrong.append(f"no test with {word!r} in its name passed")
        for name, reason in skipped:
            if word in f"{name} {reason}".lower() and not NEEDS_A_GPU.search(reason):
                wrong.append(f"{name} was skipped though {word} is installed: {reason}")

    for name, reason in skipped:
        print(f"skipped: {name}: {reason}")
    for name, reason in xfailed:
        print(f"failed as expected: {name}: {reason}")
    for sentence in wrong:
        print(f"ERROR: {sentence}")
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
