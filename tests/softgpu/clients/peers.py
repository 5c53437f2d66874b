"""Copy bytes from GPU 0 to GPU 1, and from the host to GPU 0: `peers.py PEER_BYTES HOST_BYTES`."""

import sys

import numpy as np
from driver import check, driver, start


def main() -> None:
    peer, host = map(int, sys.argv[1:])
    contexts = [start(device) for device in (1, 0)]
    memory = []
    for context in contexts:
        check(driver.cuCtxSetCurrent(context))
        memory.append(check(driver.cuMemAlloc(max(peer, host))))
    data = np.ones(host, np.uint8)
    check(driver.cuMemcpyHtoD(memory[1], data.ctypes.data, host))
    check(driver.cuMemcpyPeerAsync(memory[0], contexts[0], memory[1], contexts[1], peer, 0))
    check(driver.cuCtxSynchronize())


if __name__ == "__main__":
    main()
