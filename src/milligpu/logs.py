"""The one place that configures logs: lines on stderr with time, level and message.

Programs of a cluster log with structlog, which adds keys to a line. Sessions and the software GPU also run where
structlog is not installed, and log with the standard library. In a node's agent both meet, and look the same.
"""

import logging
import sys

_PLAIN = "%(asctime)s %(levelname)s %(message)s"
_OURS = logging.getLogger("milligpu")


def configure_logs(*, structured: bool = False) -> None:
    """Write our lines from INFO on, and warnings of libraries, to stderr; `structured` needs structlog."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_structured() if structured else logging.Formatter(_PLAIN))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    _OURS.setLevel(logging.INFO)


def _structured() -> logging.Formatter:
    """Send structlog's lines to the standard library's handler, and format lines of both."""
    import structlog  # noqa: PLC0415 - an optional dependency, and slow to import

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.stdlib.PositionalArgumentsFormatter(),
    ]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _OURS,
        cache_logger_on_first_use=True,
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False),
        ],
    )
