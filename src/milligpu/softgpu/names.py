"""Names that both a daemon and those who look for it use; free of imports, so that looking costs nothing."""

SOCKET_VARIABLE = "MILLIGPU_SOFTGPU"
"""The environment variable with the folder of the cards' sockets; read by the driver library."""
CONTROL = "control.sock"
PID_FILE = "daemon.pid"
LOG_FILE = "daemon.log"
