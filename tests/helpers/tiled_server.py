"""A Tiled server in a process of its own, with a container `a` of a few frames; prints its port and key.

python tiled_server.py FOLDER
"""

import sys
import time

import numpy as np

if __name__ == "__main__":
    from tiled.client import from_uri
    from tiled.server import SimpleTiledServer

    server = SimpleTiledServer(sys.argv[1])
    node = from_uri(server.uri).create_container("a")
    node.write_array(np.ones((6, 3, 24), np.float32), key="data")
    node.write_array(np.arange(6) * 30.0, key="angles")
    print(server.port, server.api_key, flush=True)
    time.sleep(120)
