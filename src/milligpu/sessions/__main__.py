"""`python -m milligpu.agent FOLDER`."""

import sys

from milligpu.agent.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
