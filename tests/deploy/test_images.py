"""The container images: the Dockerfile says the same as the archives, and archives are reproducible."""

import hashlib
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploy import images
from deploy.dockerfile import FILE, IGNORED, target
from deploy.images import Product
from devcluster import cache
from devcluster.report import to_nobody

PRODUCTS = pytest.mark.parametrize("product", images.PRODUCTS, ids=target)
PYTHON_PRODUCTS = pytest.mark.parametrize("product", images.PYTHON_PRODUCTS, ids=target)


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, by its name."""
    text = re.sub(r"\\\n\s*", "", FILE.read_text())
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        assert word in {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "LABEL", "USER", "CMD"}, line
        if word == "FROM":
            name = rest.partition(" AS ")[2]
        found.setdefault(name, []).append((word, rest))
    return found


@PYTHON_PRODUCTS
def test_the_dockerfile_installs_what_the_archive_has(product: Product) -> None:
    made, found = images.image(product), stages()
    stage = dict(found[target(product)])
    [packages] = [
        rest.partition("--no-install-recommends ")[2].partition(" &&")[0]
        for word, rest in found[target(product)]
        if word == "RUN" and "apt-get" in rest
    ]
    assert tuple(packages.split()) == made.packages
    assert stage.get("USER", "") == made.user
    assert all(f'{name}="{text}"' in stage["LABEL"] for name, text in made.labels)
    export = next(rest for _, rest in found[f"{target(product)}-site"] if "uv export" in rest)
    assert tuple(re.findall(r"--extra (\S+)", export)) == product.extras


def test_the_image_for_clients_has_only_libraries_and_a_program(tmp_path: Path) -> None:
    stage = stages()["client"]
    assert stage[0] == ("FROM", "scratch AS client")
    assert dict(stage)["USER"] == images.image(images.CLIENT).user
    [collect] = [rest for word, rest in stages()["client-files"] if word == "RUN"]
    assert all(f"cp {source} /client/{path}" in collect for path, source in images.CLIENT_FILES.items())
    with tarfile.open(images.archive(images.CLIENT, to_nobody)) as archive:
        blobs = [archive.extractfile(each) for each in archive.getmembers() if each.name.startswith("blobs/")]
        layer = max((blob.read() for blob in blobs if blob), key=len)
    (tmp_path / "layer.tar").write_bytes(layer)
    with tarfile.open(tmp_path / "layer.tar") as files:
        assert {each.name for each in files if each.isreg()} == {*images.CLIENT_FILES, "LICENSE"}
        files.extractall(tmp_path / "root", filter="data")
    assert len(layer) < 20 * 2**20
    command = [tmp_path / "root/milligpu-client", "copy", tmp_path / "made"]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "made/libcuda.so").exists()
    packages = json.loads(images.packages_file(images.CLIENT, to_nobody).read_text())["packages"]
    assert {each["name"] for each in packages} == {"milligpu", "openssl"}


def test_compilers_are_in_no_image_and_llvm_only_where_software_gpus_run() -> None:
    for product in images.PRODUCTS:
        final = " ".join(rest for _, rest in stages()[target(product)])
        assert "gcc" not in final.replace("libgcc", "")
        assert ("softgpu" in product.extras) == (product is images.SOFTGPU)


def test_a_stage_copies_only_from_stages_and_files_that_exist() -> None:
    found = stages()
    for name, instructions in found.items():
        for word, rest in instructions:
            if word != "COPY":
                continue
            if match := re.match(r"--from=(\S+) ", rest):
                assert match[1] in found, name
            else:
                *sources, _ = rest.split()
                assert all((images.ROOT / source).exists() for source in sources)
                kept = IGNORED.read_text().splitlines()
                assert all(f"!{source}" in kept for source in sources), "builders ignore the others"


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(900)
@PRODUCTS
def test_the_same_sources_give_the_same_archive(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: set[str] = set()
    for turn in ("first", "second"):
        monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / turn))
        digests.add(hashlib.sha256(images.archive(product, to_nobody).read_bytes()).hexdigest())
    assert len(digests) == 1
