"""Names shared by the daemon and its clients; imports nothing, so that a client starts fast."""

SOCKET_VARIABLE = "MILLIGPU_SOFTGPU"
"""The environment variable with the directory of the GPUs' sockets; the driver library reads it."""
CONTROL = "control.sock"
PID_FILE = "daemon.pid"
LOG_FILE = "daemon.log"
