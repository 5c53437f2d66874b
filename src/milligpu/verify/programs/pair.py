"""Run a program of known load twice at the same time, without limits, for some seconds; print both reports.

Arguments: seconds, and the program with its own arguments.
"""

import json
import subprocess
import sys
import time

seconds, command = float(sys.argv[1]), sys.argv[2:]
pipe = subprocess.PIPE
both = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
for each in both:
    if each.stdout.readline() != "ready\n":
        sys.exit("a program ended before it began")
for each in both:
    each.stdin.write("go\n")
    each.stdin.flush()
time.sleep(seconds)
print(json.dumps({"reports": [json.loads(each.communicate()[0]) for each in both]}))
