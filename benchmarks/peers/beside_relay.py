"""`python -m benchmarks.peers.beside_relay COMMAND…`: run a relay and this command until SIGTERM or until one ends."""

import signal
import subprocess
import sys
import time


def main() -> None:
    """Run both processes. The peer `carried` starts this as its worker."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    commands = ([sys.executable, "-m", "django", "runrelay"], sys.argv[1:])
    processes = [subprocess.Popen(command) for command in commands]
    try:
        while all(process.poll() is None for process in processes):
            time.sleep(0.05)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


if __name__ == "__main__":
    main()
