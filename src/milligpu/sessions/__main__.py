"""`python -m milligpu.sessions FOLDER`."""

import sys

from milligpu.sessions.daemon import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
