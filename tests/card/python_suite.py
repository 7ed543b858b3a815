"""Runs modules of CPython's own tests, and says of each test how it ended: a line `RESULT STATUS ID`.

usage: python3 python_suite.py SECONDS MODULE...
Each module has a process of its own, which has so many seconds."""

import os
import signal
import sys
import tempfile
import time
import unittest


class Result(unittest.TestResult):
    """Tells as it goes: a process that is killed has told what it has done."""

    def tell(self, status, test):
        os.write(1, f"\nRESULT {status} {test.id()}\n".encode())

    def startTest(self, test):
        super().startTest(test)
        self.parts = "ok"
        os.write(1, f"\nRESULT started {test.id()}\n".encode())

    def addSuccess(self, test):
        self.tell(self.parts, test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.show("failed", test, self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.show("failed", test, self.errors[-1][1])

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error is not None:
            self.parts = "failed"
            self.show("failed", test, (self.failures + self.errors)[-1][1])

    def addSkip(self, test, reason):
        self.tell("skipped", test)

    def addExpectedFailure(self, test, error):
        self.tell("ok", test)

    def addUnexpectedSuccess(self, test):
        self.tell("failed", test)

    def show(self, status, test, text):
        os.write(1, text.encode(errors="replace"))
        self.tell(status, test)


def run(module):
    from test import support

    support.use_resources = []
    support.verbose = False
    os.chdir(tempfile.mkdtemp(prefix="suite-"))
    try:
        tests = unittest.defaultTestLoader.loadTestsFromName("test." + module)
    except unittest.SkipTest:
        os.write(1, f"\nRESULT skipped {module}\n".encode())
        return
    tests.run(Result())


def main():
    seconds, modules = float(sys.argv[1]), sys.argv[2:]
    # One stream, so that no line is torn by what tests say otherwise.
    os.dup2(1, 2)
    for module in modules:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            try:
                run(module)
            finally:
                os._exit(0)
        end = time.monotonic() + seconds
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.write(1, f"\nRESULT unfinished test.{module}\n".encode())
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
            time.sleep(0.05)
        else:
            os.write(1, f"\nRESULT ok test.{module}\n".encode())
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass


# Tests of multiprocessing import the main module once more.
if __name__ == "__main__":
    main()
