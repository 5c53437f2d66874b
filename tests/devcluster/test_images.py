import hashlib
import io
import json
import tarfile

import pytest

from devcluster import images


@pytest.mark.parametrize(
    ("inside_package", "inside_image"),
    [
        ("./bin/bash", "usr/bin/bash"),
        ("./usr/bin/python3", "usr/bin/python3"),
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./libexec/tool", "libexec/tool"),
        ("./bin", "bin"),
        ("./", ""),
        (".", ""),
        ("./etc/.pwd.lock", "etc/.pwd.lock"),
    ],
)
def test_paths_of_packages_move_below_usr_as_in_debian(inside_package: str, inside_image: str) -> None:
    assert images.merged(inside_package) == inside_image


def test_an_archive_names_the_image_and_every_blob_by_its_digest() -> None:
    layer = b"a layer"
    archive = images.oci_archive(images.PAUSE, layer)

    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        contents = {name: stream.read() for name, stream in files.items() if stream}
    index = json.loads(contents["index.json"])
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == "local.dev/pause:1"
    blobs = {name: content for name, content in contents.items() if name.startswith("blobs/")}
    assert layer in blobs.values()
    for name, content in blobs.items():
        assert name == "blobs/sha256/" + hashlib.sha256(content).hexdigest()


def test_the_same_content_gives_the_same_bytes() -> None:
    assert images.oci_archive(images.BASE, b"x") == images.oci_archive(images.BASE, b"x")
