"""The name, the driver and the clocks of the GPU, from nvidia-smi."""

import subprocess

IDLE = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,memory.total"
BUSY = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"


def query_card(device: str, fields: str) -> str:
    """`fields` of the first GPU as nvidia-smi prints them, or the error if it cannot be run."""
    if device == "cpu":
        return "none: a rehearsal on the CPU"
    command = ["nvidia-smi", "--id=0", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return (finished.stdout + finished.stderr).strip()
