"""Run the tests of a module with unittest; prints how each ended.

unit_tests.py MODULE
"""

import io
import json
import sys
import unittest
from typing import Any


class Outcomes(unittest.TextTestResult):
    """Remembers what did not pass; a test with parts passes if all of them do."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.found: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.found[test.id()] = "passed"

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        # pytest's importorskip, in a test of unittest
        skipped = err[0].__name__ == "Skipped"
        self.found[test.id()] = "skipped" if skipped else f"{err[0].__name__}: {err[1]}"[-400:]

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.found[test.id()] = f"{err[0].__name__}: {err[1]}"[-400:]

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.found[test.id()] = "skipped"


if __name__ == "__main__":  # some tests start processes that import this file again
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    except BaseException as error:  # the whole module needs something that is not installed
        if type(error).__name__ != "Skipped":
            raise
        suite = unittest.TestSuite()
    done: Any = unittest.TextTestRunner(stream=io.StringIO(), resultclass=Outcomes).run(suite)
    print(json.dumps(done.found))
