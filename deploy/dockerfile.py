"""`make chart` also writes `deploy/Dockerfile`, from the same lists as the archives of `make images`."""

from pathlib import Path

from deploy import images

FILE = Path(__file__).parent / "Dockerfile"
IGNORED = Path(__file__).parents[1] / ".dockerignore"
_HEAD = """\
# Written by `make chart` from deploy/images.py; not for editing.
#
# The images of `make images` with any builder, for example:
#   docker build -f deploy/Dockerfile --target node -t milligpu.dev/milligpu-node:{version} .
# Targets: {targets}.

ARG DEBIAN=debian:12-slim

FROM ${{DEBIAN}} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends \\
    gcc libc6-dev libssl-dev python3 python3-venv
RUN python3 -m venv /uv && /uv/bin/pip install --no-cache-dir uv
WORKDIR /source
COPY {sources} ./
COPY src src
COPY native native
COPY proto proto
COPY deploy/chart deploy/chart
RUN /uv/bin/uv build --wheel --out-dir /wheel .
"""
_SITE = """
FROM build AS {target}-site
RUN /uv/bin/uv export --frozen --no-dev --no-emit-project --no-hashes {extras} > /locked.txt
RUN /uv/bin/uv pip install --no-deps --only-binary :all: --python /usr/bin/python3 --target /site \\
    -r /locked.txt /wheel/*.whl && rm -r /site/bin
"""
_IMAGE = """
FROM ${{DEBIAN}} AS {target}
RUN apt-get update && apt-get install --yes --no-install-recommends \\
    {packages} && rm -r /var/lib/apt/lists/*
COPY --from={target}-site /site /usr/lib/python3/dist-packages
RUN printf '%s\\n' '#!/usr/bin/python3' 'import sys' 'from milligpu.cli.main import main' 'sys.exit(main())' \\
    > /usr/bin/milligpu && chmod 755 /usr/bin/milligpu
LABEL {labels}
{user}CMD {command}
"""
_CLIENT = """
FROM build AS client-files
RUN /usr/bin/python3 -m zipfile -e /wheel/*.whl /unpacked && mkdir -p /client/lib && cp LICENSE /client/ \\
    && cd /unpacked/milligpu/_native {copies} && chmod 755 /client/milligpu-client

FROM scratch AS client
COPY --from=client-files /client /
LABEL {labels}
{user}CMD {command}
"""


def target(product: images.Product) -> str:
    """The stage of the Dockerfile that makes the image."""
    return product.name.removeprefix("milligpu-").replace("milligpu", "service") + product.tag


def dockerfile() -> str:
    """The text of the Dockerfile."""
    files = sorted(name for name in images.WHEEL_SOURCES if (images.ROOT / name).is_file())
    targets = ", ".join(map(target, images.PRODUCTS))
    parts = [_HEAD.format(version=images.version(), targets=targets, sources=" ".join(files))]
    for product in images.PYTHON_PRODUCTS:
        extras = " ".join(f"--extra {extra}" for extra in product.extras)
        parts.append(_SITE.format(target=target(product), extras=extras))
        packages = " ".join(images.image(product).packages)
        parts.append(_IMAGE.format(target=target(product), packages=packages, **_settings(product)))
    copies = " ".join(f"&& cp {source} /client/{path}" for path, source in images.CLIENT_FILES.items())
    parts.append(_CLIENT.format(copies=copies, **_settings(images.CLIENT)))
    return "".join(parts)


def _settings(product: images.Product) -> dict[str, str]:
    """Labels, user and command of the image, as the Dockerfile writes them."""
    made = images.image(product)
    return {
        "labels": " \\\n    ".join(f'{name}="{text}"' for name, text in made.labels),
        "user": f"USER {made.user}\n" if made.user else "",
        "command": "[" + ", ".join(f'"{word}"' for word in made.command) + "]",
    }


def ignored() -> str:
    """What a builder must not send: all but the sources of the wheel."""
    return "# Written by `make chart`.\n*\n" + "".join(f"!{name}\n" for name in sorted(images.WHEEL_SOURCES))
