"""Settings of the test process and of the processes that it starts; read before NumPy is imported.

None of them changes an answer; most lower the processor time of the suite.
"""

import os
import signal
import sys

# Without compiled files, each process that a test starts would compile the service or the exporter again, and each
# start of pytest the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# On the matrices of the tests, a second thread of NumPy's float64 products waits more than it computes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A shell starts a command in the background with SIGINT ignored, and its child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
