"""One process under watch, without Paddle: python watcher.py RANK SIZE PORT LIMIT WHAT...

Each WHAT is done in turn: say, gate, wait, hush, mute, sleep:<seconds>, hold:<seconds>, fail, stop, kill.
"""

import contextlib
import ctypes
import io
import os
import signal
import sys
import time

rank, size, port, limit = (int(word) for word in sys.argv[1:5])
os.environ |= {"PADDLE_TRAINER_ID": str(rank), "PADDLE_TRAINERS_NUM": str(size), "PADDLE_MASTER": f"127.0.0.1:{port}"}

from image_classification.parallel import hub, watch
from image_classification.parallel.exit_codes import PeerLost
from image_classification.runtime import UserError

for module in (hub, watch):  # the same in less time
    module.START_SECONDS, module.PULSE_SECONDS, module.STALE_SECONDS = float(os.environ["START"]), 0.2, 2.0
watch.LINGER_SECONDS, watch.STOP_SECONDS = 0.5, 2.0


def main(words):
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # asks to stop after a step that does not come
    this_process = watch.this_process()
    this_process.limit = limit
    for word in words:
        what, _, number = word.partition(":")
        if what == "say":
            print("here", flush=True)
        elif what == "gate":
            with this_process.waiting("a gate"):
                this_process.gate(range(size))
        elif what == "wait":  # in code that hears nothing
            with this_process.waiting("a collective"):
                time.sleep(1000)
        elif what == "hush":  # as around Paddle's start of its groups
            with this_process.waiting("a collective"), contextlib.redirect_stderr(io.StringIO()):
                time.sleep(1000)
        elif what == "mute":  # as a pipe whose reader has gone
            os.dup2(os.open("/dev/full", os.O_WRONLY), sys.stderr.fileno())
        elif what == "sleep":
            time.sleep(float(number))
        elif what == "hold":  # in code that lets no other thread of this process run
            ctypes.PyDLL(None).sleep(int(number))
        elif what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "fail":
            raise UserError("DATA_PATH: no such folder")
    print("done", flush=True)


try:
    main(sys.argv[5:])
except (UserError, PeerLost) as error:
    code = 4 if isinstance(error, PeerLost) else 2
    print(f"error: {error}", flush=True)
    watch.leave(code, str(error))
    sys.exit(code)
except KeyboardInterrupt:
    print("error: interrupted", flush=True)
    sys.exit(130)
