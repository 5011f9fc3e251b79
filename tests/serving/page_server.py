"""`bayescal serve` with the tiny backbone of the tests: python page_server.py BACKBONE.

For each line on stdin, {"port": …, "cwd": …, "model": … or null}, a server in a process of its own, whose number is
written to stdout. The packages are imported once for all of them, before they part.
"""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

from bayescal import FewShotClassifier
from bayescal.cli import main
from bayescal.serving import start
from old_files import makers

signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))
name = makers().backbone_name(Path(sys.argv[1]))
# What `fit` learns by default takes a minute; what is learned on the page is the same with a method that takes none.
start.FewShotClassifier = partial(FewShotClassifier, "logistic-regression", name, views=0)
for line in sys.stdin:
    wanted = json.loads(line)
    if number := os.fork():
        print(number, flush=True)
        continue
    os.chdir(wanted["cwd"])
    sys.stdin = open(os.devnull)  # noqa: SIM115  # this one's own: the other has been read from
    model = [] if wanted["model"] is None else [wanted["model"]]
    sys.argv = ["bayescal", "serve", *model, "--port", str(wanted["port"]), "--backbone", name]
    sys.exit(main())
